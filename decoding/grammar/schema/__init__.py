"""From the text of a JSON Schema to shapes: documents, references, dialects, and the algebra of values."""
