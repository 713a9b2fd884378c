"""Compiles JSON Schemas to constraints: what may be written is exactly the JSON that a schema allows.

A schema is compiled into shapes (`schema`), whose scalar values and keys are regular languages of bytes
(`regular`, `leaves`); a pushdown automaton over shapes (`automaton`) reads bytes, and a vocabulary
(`vocabulary`) says which tokens are which bytes. Strings that must be catalogue titles are `holes`.

Knows bytes, token ids and masks. It must not know models, transformers or where titles come from.
"""
