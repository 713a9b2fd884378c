"""`genret deploy-ray`: the service of `genret serve` as replicas behind Ray Serve's gRPC proxy."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from genret.retrieval.command_options import GroupedCommand, shown_option
from genret.retrieval.errors import InputError
from genret.service.commands import usage_error
from genret.service.commands.serve import config_options, given_flags, mistakes_as_usage, setting_options
from genret.service.configuration.resolve import resolve
from genret.service.observability.logs import announce
from genret.service.observability.logs import configure as configure_logs
from genret.service.ray_serve.deployment import DEFAULT_APPLICATION, DEFAULT_HTTP_PORT, ServePlan


@click.command("deploy-ray", cls=GroupedCommand)
@click.argument("path", metavar="[INDEX]", required=False)
@config_options(
    "DEPLOY_RAY",
    "TOML file of settings, as of genret serve. Flags and variables of genret serve win over it.",
    "Print the deployment as a file for `serve deploy`, and exit.",
)
@shown_option("--name", default=DEFAULT_APPLICATION, help="Name of the application in Serve.")
@shown_option("--num-replicas", type=int, default=1, help="How many servers there are.")
@shown_option("--num-cpus", type=float, default=1.0, help="CPUs a replica takes of a node.")
@shown_option("--num-gpus", type=float, default=0.0, help="GPUs a replica takes of a node.")
@shown_option(
    "--address",
    help="The Ray cluster, as auto or HOST:PORT.",
    show_default="that in RAY_ADDRESS, else one is started here and ends with this command",
)
@click.option("--detach", is_flag=True, help="Leave it running on the cluster and exit.", show_envvar=True)
@shown_option(
    "--http-proxy-port",
    type=int,
    default=DEFAULT_HTTP_PORT,
    help="Port, on loopback, of the HTTP proxy that Serve always starts; nothing is served there.",
)
@setting_options
@click.pass_context
def deploy_ray_command(
    context: click.Context,
    /,
    path: str | None,
    file: Path | None,
    print_config: bool,
    name: str,
    num_replicas: int,
    num_cpus: float,
    num_gpus: float,
    address: str | None,
    detach: bool,
    http_proxy_port: int,
    **settings: object,
) -> None:
    """Serve INDEX by replicas on a Ray cluster, behind Ray Serve's gRPC proxy, until SIGTERM or Ctrl-C.

    Takes the settings of genret serve, by flags, variables and file; each replica is a whole server with its
    own models and queue. Clients send the metadata application=NAME. docs/cluster.md says what is different.
    """
    del settings  # read from the context, which knows which of them were given
    with mistakes_as_usage():
        resolved = resolve(given_flags(context), path, os.environ, file)
        plan = ServePlan(resolved.config, name, num_replicas, num_cpus, num_gpus, http_proxy_port)
        if print_config:
            from genret.service.ray_serve.deployment import serve_file

            click.echo(serve_file(plan, resolved.origins), nl=False)
            return
    configure_logs(plan.config.log)
    from genret.service.ray_serve.app import run_deployment

    try:
        run_deployment(plan, address, detach, partial(announce, plan.config.log))
    except InputError as error:
        # The cluster's address has another flag where it stands beside that of a server.
        field = "address" if error.field == "ray_address" else error.field
        raise usage_error(InputError(field, error.message)) from error
