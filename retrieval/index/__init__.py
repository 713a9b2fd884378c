"""The on-disk index (docs/index-format.md): its reader and its verifier. Importing it is cheap."""
