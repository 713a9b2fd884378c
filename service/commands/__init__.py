"""The sub-commands of `genret` that start a server or talk to one."""
