"""The wires of the emulated cluster: a switch namespace with two bridges, and two cables from it to every host.

eth0 is the data network (10.99.0.x), shaped with `tc tbf`; ctl0 is the control network (10.98.0.x), unshaped, over which mpirun talks
to the hosts. A link taken down and the counters of eth0 thus concern what the program under test sends, and nothing else.
"""
import re
import subprocess

from lab_namespaces import LabError, enter

MAX_HOSTS = 200
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}


def data_address(i):
    return f"10.99.0.{i + 1}"


HEAD_ADDRESS = "10.98.0.254"


def parse_rate(text):
    """Bits per second of "100mbit"; None for "none" (as fast as the machine copies)."""
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if not match or float(match[1]) * UNITS[match[2]] < 1e5:
        raise LabError(f"rate {text!r}: write it like 100mbit, 1gbit, 10gbit (at least 100kbit), or none")
    return float(match[1]) * UNITS[match[2]]


def burst_bytes(rate):
    """What may leave at once: 1 ms of the rate, so that timers of the kernel keep up, and never less than the largest segment
    that TCP hands down (64 KiB and the headers of its packets), which the shaper would have to cut."""
    return max(96 * 1024, int(rate / 8 * 1e-3))


def inside(holder, command, text=None, kinds=("net",)):
    """Runs a command of the system in the network of a host."""
    done = subprocess.run(command, input=text, text=True, capture_output=True, preexec_fn=lambda: enter(holder, kinds), check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}" + (f"\nwith input:\n{text}" if text else ""))
    return done.stdout


def batch(holder, lines):
    inside(holder, ["ip", "-batch", "-"], "\n".join(lines) + "\n")


def shape(holder, device, rate):
    """Sets or changes the rate at which `device` sends."""
    if rate is None:
        if "tbf" in inside(holder, ["tc", "qdisc", "show", "dev", device, "root"]):
            inside(holder, ["tc", "qdisc", "del", "dev", device, "root"])
        return
    burst = burst_bytes(rate)
    queue = int(rate / 8 * 0.05) + burst  # 50 ms of waiting packets, then loss
    inside(holder, ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{int(rate)}bit", "burst", str(burst), "limit", str(queue)])


def delay(switch, ports, latency):
    """One-way latency on every cable, at the switch's end."""
    for port in ports:
        try:
            inside(switch, ["tc", "qdisc", "add", "dev", port, "root", "netem", "delay", latency, "limit", "100000"])
        except LabError as e:
            raise LabError(f"--latency {latency}: {e}; a kernel with sch_netem (modprobe sch_netem, package linux-modules-extra) is needed; "
                           "leave --latency out: the rate needs no netem") from None


def connect(switch, head, hosts):
    """Cables from the switch to every host and to the head."""
    lines = [f"link add {bridge} type bridge forward_delay 0 mcast_snooping 0" for bridge in ("data", "control")]
    for i, host in enumerate(hosts):
        lines.append(f"link add d{i} type veth peer name eth0 netns {host['pid']}")
        lines.append(f"link add c{i} type veth peer name ctl0 netns {host['pid']}")
    lines.append(f"link add chead type veth peer name ctl0 netns {head['pid']}")
    ports = [(f"{letter}{i}", bridge) for i in range(len(hosts)) for letter, bridge in (("d", "data"), ("c", "control"))]
    for port, bridge in ports + [("chead", "control")]:
        lines += [f"link set {port} master {bridge}", f"link set {port} up"]
    lines += ["link set lo up", "link set data up", "link set control up"]
    batch(switch, lines)
    for i, host in enumerate(hosts):
        batch(host, ["link set lo up", f"addr add {data_address(i)}/24 dev eth0", "link set eth0 up", f"addr add 10.98.0.{i + 1}/24 dev ctl0", "link set ctl0 up"])
    batch(head, ["link set lo up", f"addr add {HEAD_ADDRESS}/24 dev ctl0", "link set ctl0 up"])


def set_link(switch, i, up):
    """Plugs or pulls the data cable at the switch: the host sees its carrier go and keeps its address."""
    inside(switch, ["ip", "link", "set", f"d{i}", "up" if up else "down"])


def counters(pid):
    """{interface: {rx_bytes, ...}} of a process' network, read from outside."""
    result = {}
    with open(f"/proc/{pid}/net/dev", encoding="ascii") as f:
        for line in f.readlines()[2:]:
            name, _, numbers = line.partition(":")
            n = [int(x) for x in numbers.split()]
            result[name.strip()] = {"rx_bytes": n[0], "rx_packets": n[1], "rx_dropped": n[3], "tx_bytes": n[8], "tx_packets": n[9], "tx_dropped": n[11]}
    return result


def link_state(pid):
    try:
        with open(f"/proc/{pid}/root/sys/class/net/eth0/operstate", encoding="ascii") as f:
            return "up" if f.read().strip() == "up" else "down"
    except OSError:
        return "unknown"
