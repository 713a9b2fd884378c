"""Strings that must be one of a catalogue's titles."""
