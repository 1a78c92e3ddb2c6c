"""`foreword serve`: the OpenAI-compatible server of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from foreword.cli.numbers import decimal, whole_number
from foreword.cli.options import EngineOptions, Model, llm_arguments
from foreword.cli.show import note, progress_bars
from foreword.errors import ConfigError

_SERVER = "Server"


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=_SERVER, **more)


@dataclass(slots=True)
class ServerOptions:
    host: Annotated[
        str, _option("--host", help="Address to listen on; 0.0.0.0 is every one.", metavar="NAME")
    ] = "127.0.0.1"
    port: Annotated[
        int,
        _option("--port", help="0: any that is free.", parser=whole_number, metavar="N"),
    ] = 8000
    api_key: Annotated[
        list[str] | None,
        _option(
            "--api-key",
            help="Clients must send one of these. Repeatable; none: everybody may come in.",
            metavar="KEY",
            envvar="FOREWORD_API_KEY",
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        _option(
            "--served-model-name",
            help="What clients call the model. Repeatable. Default: as it was given.",
            metavar="NAME",
        ),
    ] = None
    max_body_bytes: Annotated[
        int,
        _option(
            "--max-body-bytes",
            help="Larger requests get 413.",
            parser=whole_number,
            metavar="N",
        ),
    ] = 16 * 1024 * 1024
    drain_timeout: Annotated[
        float,
        _option(
            "--drain-timeout",
            help="Seconds that running requests have after SIGTERM.",
            parser=decimal,
            metavar="X",
        ),
    ] = 60.0
    tool_call_parser: Annotated[
        str | None,
        _option("--tool-call-parser", help="Default: what the template teaches.", metavar="NAME"),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        _option("--reasoning-parser", help="think or none. Default: by template.", metavar="NAME"),
    ] = None
    seed: Annotated[
        int | None,
        _option(
            "--seed",
            help="Base of the seeds of requests that bring none.",
            parser=whole_number,
            metavar="N",
        ),
    ] = None

    def check(self) -> None:
        """Raises ConfigError naming the option."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port must be 0 .. 65535, got {self.port}")
        if self.max_body_bytes < 1:
            raise ConfigError(f"--max-body-bytes must be >= 1, got {self.max_body_bytes}")
        if not self.drain_timeout >= 0:
            raise ConfigError(f"--drain-timeout must be >= 0, got {self.drain_timeout}")
        if any(not key.strip() for key in self.api_key or ()):
            raise ConfigError("--api-key is empty; give a key, or drop the option")


def serve(model: Model, server: ServerOptions, engine: EngineOptions) -> int:
    """Serve a model to OpenAI's clients. Stops on SIGTERM when running requests have finished."""
    server.check()
    try:
        from foreword.serve.app import make_app
        from foreword.serve.desk import Desk, served_by
        from foreword.serve.run import Server, listen
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"foreword serve needs {error.name}; pip install 'foreword[serve]'"
        ) from None
    from foreword.llm import LLM

    with listen(server.host, server.port) as door:
        with progress_bars() as progress:
            llm = LLM(
                model,
                **llm_arguments(engine, server.seed),
                tool_call_parser=server.tool_call_parser,
                reasoning_parser=server.reasoning_parser,
                progress=progress,
            )
        with llm:
            desk = Desk(llm, served_by(llm, server.served_model_name or ()))
            app = make_app(
                desk, api_keys=server.api_key or (), max_body_bytes=server.max_body_bytes
            )
            host, port = door.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            note(f"serving {next(iter(desk.served.models))} at http://{shown}:{port}/v1")
            if not server.api_key and host not in ("127.0.0.1", "::1"):
                note("anyone who reaches this address may use it; --api-key closes it")
            Server(app, desk, server.drain_timeout).run(sockets=[door])
    return 0
