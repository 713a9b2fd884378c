"""The methods of `genret.v1`, whatever carries them: messages in, messages out, errors raised."""
