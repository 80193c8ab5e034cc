"""What a bed is and the commands that make it. Pure."""

from dataclasses import dataclass

#: Flows of one host that get a class of their own.
CLASSES = 1024
#: Handle of the queueing discipline, and the first of its classes that belongs to a flow.
MAJOR = 1
FIRST_MINOR = 0x100
#: The class of what is no flow (ARP), and that of a flow that is slowed down.
DEFAULT_MINOR = 0xF0
SLOW_MINOR = 0xF1
#: A flow that has sent as much carries data, and may be chosen to be slow.
DATA_BYTES = 1 << 20
#: What nftables have of a host's flows.
TABLE = ("ip", "bed")
MOST_HOSTS = 64

_SUBNET = "10.77.0"
_SUBNET_6 = "fd77:"
#: Of the bridge that a container engine makes: the same on every host.
_DOCKER = "172.17.0.1/16"
_BURST = "128k"
_NIC_BURST = "256k"
#: What a relayed device holds until the relay reads it.
_DEVICE_PACKETS = 10000
#: Bytes that a class may send in a row before others come: whole segments of the largest size.
_QUANTUM = 60000


@dataclass(frozen=True)
class Spec:
    """A bed.

    Attributes:
        name: Prefix of all names, so that several beds and other networks stay apart.
        hosts: Virtual hosts.
        flow_mbit: Rate of one TCP flow in each direction, in Mbit/s; 0: no cap.
        nic_mbit: Rate of a host's interface in each direction, in Mbit/s; 0: no cap.
        slow: Fraction of ``flow_mbit`` that one flow gets; 0: all flows are alike. It is the first
            flow of host 0 that has sent 1 MiB.
        congestion: TCP congestion control of the hosts; "" for the kernel's default.
        slow_start_after_idle: Whether a connection that paused starts slowly again, as in the
            kernel's default: net.ipv4.tcp_slow_start_after_idle of the hosts.
        delay_ms: What every packet is held up on its way from host to host.
        loss: Probability that a packet is lost.
        reorder: Probability that a packet is overtaken: it is held up twice, and 1 ms more.
        relay: Whether a program carries the packets (`bench.bed.relay`), so that all this can
            be changed while the bed is up; any of the three implies it.
        families: The hosts' kinds of address: "4", "6" or "46", for all alike or, separated by
            commas, for each.
        docker: Whether every host has, before its eth0, a bridge docker0 with the same address,
            with a container on it.
    """

    name: str = "aiacc"
    hosts: int = 4
    flow_mbit: float = 250
    nic_mbit: float = 1000
    slow: float = 0
    congestion: str = ""
    slow_start_after_idle: bool = True
    delay_ms: float = 0
    loss: float = 0
    reorder: float = 0
    relay: bool = False
    families: str = "4"
    docker: bool = False

    def check(self) -> None:
        """Raise ValueError for a bed that cannot be."""
        problem = ""
        if not self.name.isalnum():
            problem = f"name {self.name!r} (expected letters and digits)"
        elif not 1 <= self.hosts <= MOST_HOSTS:
            problem = f"{self.hosts} hosts (expected 1 to {MOST_HOSTS})"
        elif self.flow_mbit < 0 or self.nic_mbit < 0:
            problem = "a negative rate (expected Mbit/s, or 0 for no cap)"
        elif not 0 <= self.slow <= 1 or (self.slow and not self.flow_mbit):
            problem = f"slow = {self.slow:g} (expected a fraction from 0 to 1, and a flow cap)"
        elif self.delay_ms < 0 or not 0 <= self.loss <= 1 or not 0 <= self.reorder <= 1:
            problem = "a delay, loss or reordering that cannot be (expected ms >= 0, and fractions)"
        elif {*self._families()} - {"4", "6", "46"} or len(self._families()) != self.hosts:
            problem = f"families {self.families!r} (expected 4, 6 or 46, one or one for each host)"
        elif not set.intersection(*(set(kinds) for kinds in self._families())):
            problem = f"families {self.families!r} (expected one that all hosts have)"
        elif self.flow_mbit and "6" in self.families:
            problem = (
                "a flow cap and IPv6 (expected flow_mbit=0: only flows of IPv4 are told apart)"
            )
        if problem:
            raise ValueError(problem)

    def _families(self) -> list[str]:
        found = self.families.split(",")
        return found * self.hosts if len(found) == 1 else found

    def addresses(self, host: int) -> list[str]:
        """Addresses of a host, IPv4 first."""
        kinds = {"4": f"{_SUBNET}.{host + 1}", "6": f"{_SUBNET_6}:{host + 1:x}"}
        return [kinds[kind] for kind in self._families()[host]]

    @property
    def meeting(self) -> str:
        """Address of host 0, of a kind that all hosts have."""
        common = set.intersection(*(set(kinds) for kinds in self._families()))
        return next(
            address for address in self.addresses(0) if ("6" if ":" in address else "4") in common
        )

    @property
    def switch(self) -> str:
        """Name of the network namespace that has the bridge, away from the machine's firewall."""
        return f"{self.name}-sw"

    def namespace(self, host: int) -> str:
        """Name of a host's network namespace."""
        return f"{self.name}-{host}"

    @property
    def relayed(self) -> bool:
        """Whether a relay joins the hosts, and not a bridge."""
        return self.relay or self.delay_ms > 0 or self.loss > 0 or self.reorder > 0

    @property
    def caps(self) -> str:
        """Rates of a flow and of a host's interface, as in tables."""
        flow = f"{self.flow_mbit:g}" if self.flow_mbit else "no cap"
        return f"{flow} / {f'{self.nic_mbit:g} Mbit/s' if self.nic_mbit else 'no cap'}"

    @property
    def capped(self) -> bool:
        """Whether the hosts have a queueing discipline."""
        return self.flow_mbit > 0 or self.nic_mbit > 0


def host_name(host: int) -> str:
    """Name that a host has for itself and for the others."""
    return f"node{host}"


def hosts_file(spec: Spec) -> str:
    """Content of /etc/hosts in every virtual host."""
    lines = ["127.0.0.1 localhost"]
    for host in range(spec.hosts):
        lines += [f"{address} {host_name(host)}" for address in spec.addresses(host)]
    return "\n".join(lines) + "\n"


def namespaces(spec: Spec) -> list[str]:
    """Lines for ``ip -batch``: the hosts, and the switch unless a relay joins them."""
    lines = [f"netns add {spec.namespace(host)}" for host in range(spec.hosts)]
    if spec.docker:
        lines += [
            f"link add docker0 netns {spec.namespace(host)} type bridge"
            for host in range(spec.hosts)
        ]
    return lines if spec.relayed else [*lines, f"netns add {spec.switch}"]


def links(spec: Spec) -> list[str]:
    """Lines for ``ip -batch`` inside the switch: the bridge and a cable to every host."""
    lines = ["link add bridge type bridge", "link set bridge up"]
    for host in range(spec.hosts):
        lines += [
            f"link add port{host} type veth peer name eth0 netns {spec.namespace(host)}",
            f"link set port{host} master bridge up",
        ]
    return lines


def interior(spec: Spec, host: int) -> list[str]:
    """Lines for ``ip -batch`` inside a host."""
    control = f" congctl {spec.congestion}" if spec.congestion else ""
    lines = [f"link set eth0 txqueuelen {_DEVICE_PACKETS} up", "link set lo up"]
    for address in spec.addresses(host):
        if ":" in address:
            lines += [
                f"address add {address}/64 dev eth0 nodad noprefixroute",
                f"route add {_SUBNET_6}:/64 dev eth0{control}",
            ]
        else:
            lines += [
                f"address add {address}/24 dev eth0 noprefixroute",
                f"route add {_SUBNET}.0/24 dev eth0 src {address}{control}",
            ]
    if spec.docker:
        lines += [
            "link add vethc type veth peer name container",
            "link set vethc master docker0 up",
            "link set container up",
            f"address add {_DOCKER} dev docker0",
            "link set docker0 up",
        ]
    return lines


def shaping(spec: Spec) -> list[str]:
    """Lines for ``tc -batch`` inside a host: the interface's class, and one below it per flow.

    A flow is guaranteed little and may borrow up to its cap, so that flows share the interface
    equally when it is the narrower one.
    """
    nic = spec.nic_mbit or spec.flow_mbit * CLASSES
    lines = [
        f"qdisc add dev eth0 root handle {MAJOR}: htb default {DEFAULT_MINOR:x}",
        _class(f"{MAJOR}:", 1, nic, nic, _NIC_BURST),
        _class(f"{MAJOR}:1", DEFAULT_MINOR, min(10, nic), nic, _BURST),
    ]
    if spec.flow_mbit:
        flow = min(spec.flow_mbit, nic)
        least = min(1, flow)
        if spec.slow:
            slow = flow * spec.slow
            lines.append(_class(f"{MAJOR}:1", SLOW_MINOR, min(least, slow), slow, _BURST))
        lines += [
            _class(f"{MAJOR}:1", FIRST_MINOR + number, least, flow, _BURST)
            for number in range(CLASSES)
        ]
    return lines


def classifying(spec: Spec, host: int) -> list[str]:
    """Lines for ``nft -f`` inside a host: give every TCP flow a class of its own.

    Unlike a hash of ports they cannot put two flows into one class: the first packet of a flow
    takes the next number that nobody has. A number above those of the classes means the default
    class. What was there before goes: all numbers are free again.
    """
    table = " ".join(TABLE)
    flow = "ip saddr . tcp sport . ip daddr . tcp dport"
    kept = f"size {2 * CLASSES}; flags dynamic"
    number = f"numgen inc mod {0xFFFF - FIRST_MINOR} offset {MAJOR << 16 | FIRST_MINOR}"
    lines = [
        f"add table {table}",
        f"delete table {table}",
        f"add table {table}",
        f"add map {table} flows {{ typeof {flow} : meta priority; {kept}; }}",
        f"add chain {table} out {{ type filter hook postrouting priority 0; }}",
        f"add chain {table} known",
        f"add rule {table} out oifname != eth0 accept",
        f"add rule {table} out meta priority set {flow} map @flows goto known",
        f"add rule {table} out meta priority set {number} "
        f"add @flows {{ {flow} counter : meta priority }}",
    ]
    if spec.slow and host == 0:
        # The packet that takes a flow beyond DATA_BYTES makes it the slow one, if none is.
        lines += [
            f"add set {table} sent {{ typeof {flow}; {kept}; }}",
            f"add set {table} slow {{ typeof {flow}; size 1; flags dynamic; }}",
            f"add rule {table} known add @sent {{ {flow} quota over {DATA_BYTES} bytes }} "
            f"add @slow {{ {flow} }}",
            f"add rule {table} known {flow} @slow meta priority set {MAJOR}:{SLOW_MINOR:x}",
        ]
    return lines


def _class(parent: str, minor: int, rate_mbit: float, ceil_mbit: float, burst: str) -> str:
    rate, ceil = round(rate_mbit * 1e6), round(ceil_mbit * 1e6)
    return (
        f"class add dev eth0 parent {parent} classid {MAJOR}:{minor:x} htb rate {rate} ceil {ceil} "
        f"burst {burst} cburst {burst} quantum {_QUANTUM}"
    )
