"""`python -m genret`: the `genret` command, without its console script."""

from genret.service.main import cli

if __name__ == "__main__":
    cli()
