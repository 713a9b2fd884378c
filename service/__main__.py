"""`python -m service`: the `genret` command, without its console script."""

from service.main import cli

if __name__ == "__main__":
    cli()
