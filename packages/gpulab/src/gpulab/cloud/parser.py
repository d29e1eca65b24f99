"""The command line of `gpuplane cloud`. It imports nothing that only a command needs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from gpulab.cloud.fault_names import COUNTED
from gpuplane.cli.options import DOCUMENTS, FORMS, completed, duration, examples, form_options, lazy, talk_options

_MODULE: Final = "gpulab.cloud.command"
_NOTICE_SECONDS: Final = 120.0  # as EC2 gives


def add_cloud(commands: Any) -> None:
    """Add `cloud` with its actions to the subparsers of `gpuplane`."""
    cloud = commands.add_parser("cloud", help="the simulated cloud of gpuplane up --cloud: its bill and its faults")
    actions = cloud.add_subparsers(title="actions", metavar="ACTION", required=True)
    examples(cloud, "gpuplane cloud ls", "gpuplane cloud fault throttled 20")

    listed = _action(actions, "ls", "the instances, and what they cost", FORMS)
    listed.set_defaults(command=lazy(_MODULE, "ls"))
    examples(listed, "gpuplane cloud ls", "gpuplane cloud ls -o wide                with nodes and zones")

    interrupt = _action(actions, "interrupt", "take a spot instance back, with the notice that EC2 gives", DOCUMENTS)
    interrupt.add_argument("instance", help="id of the instance, such as i-0123456789abcdef0")
    interrupt.add_argument(
        "--notice", type=duration, metavar="TIME", default=_NOTICE_SECONDS, help="time from notice to end (default: 2m)"
    )
    interrupt.set_defaults(command=lazy(_MODULE, "interrupt"))
    examples(interrupt, "gpuplane cloud interrupt i-0123456789abcdef0 --notice 30s")

    for name, opens in (("no-capacity", False), ("capacity", True)):
        text = "let a type be had again" if opens else "refuse launches of a type"
        action = _action(actions, name, text, DOCUMENTS)
        completed(action.add_argument("type", help="instance type"), "gpulab.cloud.command:type_names")
        if not opens:
            action.add_argument("--zone", default="", help="only there")
            action.add_argument(
                "--capacity-type", choices=["spot", "on-demand"], default="", help="only of this kind (default: both)"
            )
            action.add_argument(
                "--for",
                dest="during",
                type=duration,
                metavar="TIME",
                help="so long (default: until gpuplane cloud capacity)",
            )
            examples(
                action,
                "gpuplane cloud no-capacity g4dn.xlarge --capacity-type spot",
                "gpuplane cloud no-capacity g4dn.xlarge --zone us-east-1a --for 5m",
            )
        else:
            examples(action, "gpuplane cloud capacity g4dn.xlarge")
        action.set_defaults(command=lazy(_MODULE, "capacity"), open=opens, zone="", capacity_type="", during=None)

    fault = _action(actions, "fault", "let a fault happen: " + ", ".join(COUNTED), DOCUMENTS)
    told = "; ".join(f"{name}: {text}" for name, text in COUNTED.items())
    fault.add_argument("fault", choices=list(COUNTED), metavar="fault", help=told)
    fault.add_argument("times", type=_times, nargs="?", default=1, help="how often (default: %(default)s); 0 ends it")
    fault.set_defaults(command=lazy(_MODULE, "fault"))
    examples(fault, "gpuplane cloud fault lost-answers", "gpuplane cloud fault throttled 20")

    boot = _action(actions, "slow-boot", "let instances take longer until they join", DOCUMENTS)
    boot.add_argument("seconds", type=duration, metavar="TIME", help="from the launch; 0s for no wait")
    boot.set_defaults(command=lazy(_MODULE, "boot"))
    examples(boot, "gpuplane cloud slow-boot 90s", "gpuplane cloud slow-boot 0s")

    image = _action(actions, "new-image", "publish a newer image, also in each launch template", DOCUMENTS)
    image.set_defaults(command=lazy(_MODULE, "image"))
    examples(image, "gpuplane cloud new-image")


def _times(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no number of times: 0 or more")
    return int(text)


def _action(actions: Any, name: str, text: str, forms: tuple[str, ...]) -> ArgumentParser:
    action: ArgumentParser = actions.add_parser(name, parents=[talk_options(), form_options(*forms)], help=text)
    cluster = action.add_argument("--name", default="", help="name of the cluster (default: the only one there is)")
    completed(cluster, "gpulab.up:cluster_names")
    return action
