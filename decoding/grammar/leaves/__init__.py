"""Regular languages of bytes: what a scalar value or a key may be, quotes included."""
