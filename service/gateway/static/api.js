// The JSON face of genret.v1, and what its errors say.

const API = new URL("v1/", document.baseURI);

/** A call that failed: what the server said, and at which fields. */
export class ApiError extends Error {
  constructor(httpStatus, body) {
    const error = body?.error ?? {};
    super(error.message || `the server answered with HTTP status ${httpStatus}`);
    this.name = "ApiError";
    this.httpStatus = httpStatus;
    this.status = error.status ?? "";
    const details = Array.isArray(error.details) ? error.details : [];
    this.violations = details.flatMap((detail) => detail.field_violations ?? detail.fieldViolations ?? []);
    this.reason = details.find((detail) => detail.reason)?.reason ?? "";
    this.retrySeconds = retrySeconds(details);
  }
}

function retrySeconds(details) {
  const delay = details.map((detail) => detail.retry_delay ?? detail.retryDelay).find((found) => found !== undefined);
  return delay === undefined ? undefined : Number.parseFloat(delay);
}

/** There was no answer at all. */
export class UnreachableError extends Error {
  constructor(cause) {
    super("The server cannot be reached.", { cause });
    this.name = "UnreachableError";
  }
}

/** Send a request and read the whole answer. */
async function exchange(url, options) {
  try {
    const response = await fetch(url, options);
    return { response, text: await response.text() };
  } catch (error) {
    throw error.name === "AbortError" ? error : new UnreachableError(error);
  }
}

/** Ask the API; throws ApiError, UnreachableError, or an AbortError when the call was given up. */
async function call(method, path, { token, body, signal }) {
  const headers = { Accept: "application/json" };
  if (token) {
    headers.Authorization = `Bearer ${token}`;
  }
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
  }
  const { response, text } = await exchange(new URL(path, API), {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    credentials: "omit",
    cache: "no-store",
    redirect: "error",
  });
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new ApiError(response.status, { error: { message: `no JSON came back (HTTP status ${response.status})` } });
  }
  if (!response.ok) {
    throw new ApiError(response.status, parsed);
  }
  return parsed;
}

/** Every index that is served. */
export async function listIndexes(token, signal) {
  return (await call("GET", "indexes", { token, signal })).indexes ?? [];
}

/** The answer to a RetrieveRequest. */
export function retrieve(token, body, signal) {
  return call("POST", "retrieve", { token, body, signal });
}

/** The answer to a CompleteRequest. */
export function complete(token, body, signal) {
  return call("POST", "complete", { token, body, signal });
}

/** The answer to an AnswerRequest. */
export function answer(token, body, signal) {
  return call("POST", "answer", { token, body, signal });
}
