// Numbers for people. The API writes 64-bit integers as strings and numbers that JSON lacks as "NaN", "Infinity".

/** Read a number of the API; undefined where it is not there. */
export function number(value) {
  return value === undefined || value === null ? undefined : Number(value);
}

/** A probability as text: "62 %", "6.2 %", "0.062 %", "3.1e-7". */
export function percent(probability) {
  if (probability === undefined || Number.isNaN(probability)) {
    return "unknown";
  }
  const hundredths = probability * 100;
  if (hundredths === 0 || hundredths >= 99.95) {
    return hundredths === 0 ? "0 %" : "100 %";
  }
  if (hundredths >= 99) {
    return `${hundredths.toFixed(1)} %`;
  }
  if (hundredths >= 9.95) {
    return `${hundredths.toFixed(0)} %`;
  }
  if (hundredths >= 0.01) {
    return `${hundredths.toPrecision(2)} %`;
  }
  return probability.toExponential(1);
}

/** A probability as a decimal of two or three digits that count. */
export function decimal(value) {
  if (value === undefined) {
    return "unknown";
  }
  return Math.abs(value) >= 0.01 || value === 0 ? value.toFixed(2) : value.toExponential(1);
}

/** The log of a probability as text; never "-0.00". */
export function logText(value, digits = 2) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? (0).toFixed(digits) : text.replace("-", "−");
}

/** Milliseconds as text. */
export function milliseconds(value) {
  return value >= 1000 ? `${(value / 1000).toFixed(2)} s` : `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`;
}

/** Bytes as text, in powers of 1024. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let scaled = value;
  let unit = 0;
  while (Math.abs(scaled) >= 1024 && unit < units.length - 1) {
    scaled /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? scaled : scaled.toFixed(1)} ${units[unit]}`;
}

/** A count with its noun: "1 entity", "3,205 entities". */
export function count(value, one, many = `${one}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}
