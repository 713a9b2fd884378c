"""What a server is told: its settings, checked in one place."""
