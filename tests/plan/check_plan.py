#!/usr/bin/env python3
"""Independent checker for memory plans of one training step. No dependencies.

usage: check_plan.py graph.json plan.json   -> prints a JSON verdict, exit 0 (valid) / 1 (invalid) / 2 (bad input)

graph.json ("opt": optional)
```
{ "version":1, "budget_bytes":B,
  "bandwidth":{"d2h":bytes/s,"h2d":bytes/s,"duplex":true}, "host_bytes":H (opt),
  "base_bytes":0,                                   # always-resident bytes not listed as tensors
  "codecs":{"mxfp8":{"ratio":0.2578125,"enc_Bps":1e12,"dec_Bps":1e12,"max_err":0.07}},          (opt)
  "tensors":[{"id":"x","bytes":n,"kind":"input|param|state|activation|grad|output",
              "alias_of":null|"y","lossy_ok":false,"codecs":["mxfp8"] (opt: codecs that can hold it)}],
  "nodes":[{"name":"conv1","inputs":[..],"outputs":[..],"mutates":[..],"random":false,"recomputable":true,
            "reads_unpacked":false (opt: true: it reads no copy that was in a packed form),
            "algos":[{"name":"gemm","time":s,"workspace":bytes,"host":[..] (opt: tensors of "mutates" whose host copy
                      it reads and writes; they are not on the device, and the host copy gets the new version)},...]}],
  "final":["tensor ids that must be resident on device, exact, at the end"] }
```
Tensors of kind input, param or state are resident at t=0, except for the plan's "starts_on_host". "mutates" lists
in-place writes; every write makes a new version of that tensor. "pinned_order": nodes with mutates, or random and
not recomputable, run exactly once.

plan.json
```
{ "version":1, "actions":[ {"id":0,"op":"compute","node":"conv1","algo":"gemm","deps":[...]},
   {"id":1,"op":"offload","tensor":"x"}, {"op":"prefetch","tensor":"x"}, {"op":"free","tensor":"x"},
   {"op":"free_host","tensor":"x"}, {"op":"compress","tensor":"x","codec":"mxfp8"}, {"op":"decompress","tensor":"x"},
   {"op":"free_packed","tensor":"x"} ],
  "claims":{"peak_bytes":..,"makespan":..} (opt),
  "starts_on_host":[ids] (opt) }
```
"starts_on_host" may list tensors of kind param and state only. At t=0 they are exact on the host, where they take
bytes, and not on the device. At the end their newest version must be exact on the host. So the next step can
begin in the same way. "final" does not require them on the device.

Actions are in ISSUE order. There are three streams, each a FIFO: compute, d2h and h2d. With duplex=false the two
copy streams share one engine. The compute stream runs compute, compress and decompress; all frees are host-ordered
on it. Start = max(end of previous on its stream, ends of deps, ends of the producers of its inputs). A copy listed
between compute k and k+1 starts no earlier than the END of k and overlaps k+1. Explicit "deps" add cross-stream
waits, e.g. "compute waits for an offload to have freed room". The checker adds data waits itself, so a plan cannot
win by racing.

Memory is charged from START of the producing action: prefetch target, compute outputs + workspace, packed copy.
Workspace is released at the action's end. A tensor is released at max(free issue point, end of every reader incl.
offload in flight). Free of a tensor being offloaded therefore waits: bytes stay charged until the copy ends.
"""

# ruff: noqa: E501, E741, E743, SIM115
import json
import sys


class Bad(Exception):
    pass


def check(g, p, tol=1e-9):
    T = {t["id"]: t for t in g["tensors"]}
    N = {n["name"]: n for n in g["nodes"]}
    if len(T) != len(g["tensors"]) or len(N) != len(g["nodes"]):
        raise Bad("duplicate tensor or node name")
    for n in N.values():
        for x in n["inputs"] + n["outputs"] + n.get("mutates", []):
            if x not in T:
                raise Bad(f"node {n['name']}: unknown tensor {x}")
        if not n["algos"]:
            raise Bad(f"node {n['name']}: no algos")

    def root(x):
        return x if not T[x].get("alias_of") else root(T[x]["alias_of"])

    def size(r):
        return T[r]["bytes"]

    prod = {}
    for n in N.values():
        for o in n["outputs"]:
            if T[o].get("alias_of"):
                continue
            if o in prod:
                raise Bad(f"tensor {o} has two producers")
            prod[o] = n["name"]
    # reference versions: run graph nodes in listed order; version of a root = number of writes; each node reads fixed versions
    ver = {}
    need = {}
    writes = {}
    order = {}
    for x, t in T.items():
        if not t.get("alias_of") and t["kind"] in ("input", "param", "state"):
            ver[x] = 0
    for k, n in enumerate(g["nodes"]):
        order[n["name"]] = k
        for x in n["inputs"]:
            if root(x) not in ver:
                raise Bad(f"graph not topological: {n['name']} reads {x}")
        need[n["name"]] = {root(x): ver[root(x)] for x in n["inputs"] + n.get("mutates", [])}
        for x in n["outputs"]:
            if not T[x].get("alias_of"):
                ver[x] = 0
        writes[n["name"]] = {}
        for x in n.get("mutates", []):
            ver[root(x)] += 1
            writes[n["name"]][root(x)] = ver[root(x)]
    final_ver = dict(ver)
    B = g["budget_bytes"]
    bw = g["bandwidth"]
    H = g.get("host_bytes")
    res = {}  # root -> dict(ver, exact, ready, uses_end) resident on device
    host = {}
    packed = {}
    done = {}  # done: node -> count
    live = []  # (time, delta) events
    hlive = []

    def alloc(t, b, l=None):
        (live if l is None else l).append((t, 0, b))  # order: frees at same t come first? see below

    def rel(t, b, l=None):
        (live if l is None else l).append((t, -1, -b))

    away = p.get("starts_on_host", [])
    if len(set(away)) != len(away):
        raise Bad("starts_on_host names a tensor twice")
    for x in away:
        if x not in T or T[x].get("alias_of") or T[x]["kind"] not in ("param", "state"):
            raise Bad(f"starts_on_host: {x} is no storage of kind param or state")
    for x, t in T.items():
        if t.get("alias_of") or t["kind"] not in ("input", "param", "state"):
            continue
        if x in away:
            host[x] = dict(ver=0, exact=True, ready=0.0, last=0.0)
            alloc(0.0, t["bytes"], hlive)
        else:
            res[x] = dict(ver=0, exact=True, ready=0.0, last=0.0)
            alloc(0.0, t["bytes"])
    if g.get("base_bytes"):
        alloc(0.0, g["base_bytes"])
    clock = {"compute": 0.0, "d2h": 0.0, "h2d": 0.0}
    end = {}
    makespan = 0.0

    def fail(i, msg):
        raise Bad(f"action {i}: {msg}")

    for i, a in enumerate(p["actions"]):
        op = a["op"]
        aid = a.get("id", i)
        if aid in end:
            fail(i, f"duplicate id {aid}")
        dep = 0.0
        for d in a.get("deps", []):
            if d not in end:
                fail(i, f"dep {d} not issued earlier")
            dep = max(dep, end[d])
        x = a.get("tensor")
        if op != "compute":
            if x not in T:
                fail(i, f"unknown tensor {x}")
            r = root(x)
            if r != x:
                fail(i, f"{op} must name the storage root {r}, not view {x}")
        if op == "compute":
            n = N.get(a["node"]) or fail(i, "unknown node " + str(a["node"]))
            nm = n["name"]
            al = [z for z in n["algos"] if z["name"] == a.get("algo", n["algos"][0]["name"])]
            if not al:
                fail(i, f"{nm}: unknown algo {a.get('algo')}")
            al = al[0]
            s = max(clock["compute"], dep)
            if done.get(nm, 0) and (n.get("mutates") or not n.get("recomputable", not n.get("random", False))):
                fail(i, f"{nm} may run only once")
            there = al.get("host", [])
            for q, v in need[nm].items():
                if q in there:
                    e = host.get(q)
                    if e is None:
                        fail(i, f"{nm} reads {q}, not on host")
                    if q in res:
                        fail(i, f"{nm} writes {q} on host while it is on device")
                else:
                    e = res.get(q)
                if e is None:
                    fail(i, f"{nm} reads {q}, not on device (use after free / never produced)")
                if e["ver"] != v:
                    fail(i, f"{nm} reads version {e['ver']} of {q}, needs {v}")
                if not e["exact"] and not T[q].get("lossy_ok"):
                    fail(i, f"{nm} reads lossy copy of {q}, not allowed")
                if e.get("coded") and n.get("reads_unpacked"):
                    fail(i, f"{nm} reads {q}, which was packed, not allowed")
                s = max(s, e["ready"])
            f = s + al["time"]
            outs = [o for o in n["outputs"] if not T[o].get("alias_of")]
            for o in outs:
                if o in res:
                    fail(i, f"{nm} recomputes {o} which is still on device")
            at = {q: host[q] if q in there else res[q] for q in need[nm]}
            lossy = any(not e["exact"] for e in at.values())
            for q, e in at.items():
                if q in there and e["last"] > s + tol:
                    fail(i, f"{nm} writes {q} while it is being fetched")
                e["last"] = max(e["last"], f)
            for q, v in writes[nm].items():
                if q in there:
                    if q in packed:
                        fail(i, f"{nm} writes {q} while a stale packed copy exists")
                    host[q]["ver"] = v
                    host[q]["ready"] = f
                    continue
                if q in host or q in packed:
                    fail(i, f"{nm} writes {q} while a stale host/packed copy exists")
                # WAR against copies in flight
                if res[q].get("copy_end", 0.0) > s + tol:
                    fail(i, f"{nm} writes {q} while it is being offloaded")
                res[q]["ver"] = v
                res[q]["ready"] = f
            for o in outs:
                # a recompute from a lossy copy is not the tensor of the first run
                res[o] = dict(ver=0, exact=not (lossy and done.get(nm, 0)), ready=f, last=f)
                alloc(s, size(o))
            if al["workspace"]:
                alloc(s, al["workspace"])
                rel(f, al["workspace"])
            done[nm] = done.get(nm, 0) + 1
            clock["compute"] = f
        elif op in ("offload", "prefetch"):
            st = "d2h" if op == "offload" else "h2d"
            rate = bw[st]
            # a copy listed between compute k and k+1 waits for the END of k (event) and may overlap k+1, k+2, ...
            s = max(clock[st], dep, clock["compute"])
            if not bw.get("duplex", True):
                s = max(s, clock["d2h"], clock["h2d"])
            if op == "offload":
                e = res.get(x) or fail(i, f"offload of {x}: not on device")
                if x in host:
                    fail(i, f"{x} already has a host copy")
                s = max(s, e["ready"])
                f = s + size(x) / rate
                e["last"] = max(e["last"], f)
                e["copy_end"] = f
                host[x] = dict(ver=e["ver"], exact=e["exact"], coded=e.get("coded"), ready=f, last=f)
                alloc(s, size(x), hlive)
            else:
                h = host.get(x) or fail(i, f"prefetch of {x}: no host copy")
                if x in res:
                    fail(i, f"prefetch of {x}: already on device")
                s = max(s, h["ready"])
                f = s + size(x) / rate
                res[x] = dict(ver=h["ver"], exact=h["exact"], coded=h.get("coded"), ready=f, last=f)
                alloc(s, size(x))
                h["last"] = max(h["last"], f)
            clock[st] = f
        elif op in ("compress", "decompress"):
            c = g.get("codecs", {}).get(a.get("codec") or packed.get(x, {}).get("codec")) or fail(i, "unknown codec")
            s = max(clock["compute"], dep)
            pb = -(-size(x) * c["ratio"] // 1)
            if op == "compress":
                e = res.get(x) or fail(i, f"compress of {x}: not on device")
                if not T[x].get("lossy_ok") and c.get("max_err", 0) > 0:
                    fail(i, f"{x} may not be stored lossily")
                if a["codec"] not in T[x].get("codecs", g["codecs"]):
                    fail(i, f"{x} does not fit codec {a['codec']}")
                if x in packed:
                    fail(i, f"{x} already packed")
                s = max(s, e["ready"])
                f = s + size(x) / c["enc_Bps"]
                e["last"] = max(e["last"], f)
                packed[x] = dict(
                    ver=e["ver"],
                    exact=e["exact"] and c.get("max_err", 0) == 0,
                    ready=f,
                    last=f,
                    codec=a["codec"],
                    bytes=pb,
                )
                alloc(s, pb)
            else:
                q = packed.get(x) or fail(i, f"decompress of {x}: no packed copy")
                if x in res:
                    fail(i, f"{x} already on device")
                s = max(s, q["ready"])
                f = s + size(x) / c["dec_Bps"]
                q["last"] = f
                res[x] = dict(ver=q["ver"], exact=q["exact"], coded=True, ready=f, last=f)
                alloc(s, size(x))
            clock["compute"] = f
        elif op == "free":
            e = res.pop(x, None) or fail(i, f"free of {x}: not on device (double free)")
            if T[x]["kind"] in ("param", "state") and x not in host:
                fail(i, f"free of {T[x]['kind']} {x} without host copy")
            s = f = max(e["last"], e["ready"], dep, 0.0)
            rel(f, size(x))
        elif op == "free_host":
            h = host.pop(x, None) or fail(i, f"free_host of {x}: none")
            s = f = max(h["last"], dep)
            rel(f, size(x), hlive)
        elif op == "free_packed":
            q = packed.pop(x, None) or fail(i, f"free_packed of {x}: none")
            s = f = max(q["last"], dep)
            rel(f, q["bytes"])
        else:
            fail(i, f"unknown op {op}")
        end[aid] = f
        makespan = max(makespan, f)
    for nm in N:
        if not done.get(nm):
            raise Bad(f"node {nm} never runs")
    for x in away:
        h = host.get(x)
        if h is None or h["ver"] != final_ver[x] or not h["exact"]:
            raise Bad(f"{x} starts on the host; its newest version, exact, is not there at the end")
    for x in g.get("final", []):
        r = root(x)
        if r in away:
            continue
        e = res.get(r)
        if e is None:
            raise Bad(f"final tensor {x} not on device")
        if e["ver"] != final_ver[r]:
            raise Bad(f"final tensor {x}: version {e['ver']} != {final_ver[r]}")
        if not e["exact"]:
            raise Bad(f"final tensor {x} is a lossy copy")

    def peak(ev):
        cur = pk = 0
        at = 0.0
        for t, _k, d in sorted(ev, key=lambda z: (round(z[0], 12), z[1])):  # frees (k=-1) before allocs at equal time
            cur += d
            if cur > pk:
                pk, at = cur, t
        return pk, at

    pk, at = peak(live)
    hp, _ = peak(hlive)
    if pk > B:
        raise Bad(f"over budget: peak {pk} > {B} bytes at t={at:.6g}s")
    if H is not None and hp > H:
        raise Bad(f"over host budget: {hp} > {H}")
    c = p.get("claims", {})
    if "peak_bytes" in c and c["peak_bytes"] < pk:
        raise Bad(f"claimed peak {c['peak_bytes']} < simulated {pk}")
    if "makespan" in c and abs(c["makespan"] - makespan) > 1e-6 * max(1.0, makespan) + 0.02 * makespan:
        raise Bad(f"claimed makespan {c['makespan']} vs simulated {makespan}")
    return dict(
        valid=True,
        peak_bytes=pk,
        peak_at=at,
        makespan=makespan,
        host_peak=hp,
        recomputes=sum(v - 1 for v in done.values()),
        busy={k: v for k, v in clock.items()},
    )


def main():
    if len(sys.argv) == 2 and sys.argv[1] == "--selftest":
        return selftest()
    try:
        g = json.load(open(sys.argv[1]))
        p = json.load(open(sys.argv[2]))
    except Exception as e:
        print(json.dumps(dict(valid=False, error=f"bad input: {e}")))
        return 2
    try:
        r = check(g, p)
    except (Bad, KeyError, TypeError) as e:
        print(json.dumps(dict(valid=False, error=str(e))))
        return 1
    print(json.dumps(r))
    return 0


def selftest():
    def A(n, i, o, t=1.0, w=0, **k):
        return dict(
            name=n,
            inputs=i,
            outputs=o,
            algos=[dict(name="slow", time=t, workspace=0), dict(name="fast", time=t / 2, workspace=w)],
            **k,
        )

    def Tn(i, b, k="activation", **q):
        return dict(id=i, bytes=b, kind=k, **q)

    g = dict(
        version=1,
        budget_bytes=100,
        bandwidth=dict(d2h=10, h2d=10, duplex=True),
        codecs=dict(fp8=dict(ratio=0.25, enc_Bps=100, dec_Bps=100, max_err=0.1)),
        tensors=[
            Tn("x", 10, "input"),
            Tn("w", 10, "param"),
            Tn("a", 30, lossy_ok=True),
            Tn("b", 30),
            Tn("c", 30),
            Tn("gb", 30),
            Tn("ga", 30),
            Tn("gw", 10, "grad"),
        ],
        nodes=[
            A("f1", ["x", "w"], ["a"], 1, 20),
            A("f2", ["a"], ["b"]),
            A("f3", ["b"], ["c"]),
            A("g3", ["b", "c"], ["gb"], 4),
            A("g2", ["a", "gb"], ["ga"]),
            A("g1", ["ga", "x", "w"], ["gw"]),
            A("upd", ["gw", "w"], [], 0.1, mutates=["w"]),
        ],
        final=["w"],
    )

    def C(n, al="slow", **k):
        return dict(op="compute", node=n, algo=al, **k)

    def O(op, t, **k):
        return dict(op=op, tensor=t, **k)

    tail = [C("g2"), O("free", "a"), O("free", "gb"), C("g1"), O("free", "ga"), C("upd"), O("free", "gw")]
    ok = [
        C("f1"),
        O("offload", "a", id="off"),
        C("f2"),
        O("free", "a"),
        C("f3"),
        C("g3", deps=["off"]),
        O("free", "b"),
        O("free", "c"),
        O("prefetch", "a"),
        *tail,
    ]
    # keep everything: 20+a+b+c=110 > 100
    over = [C("f1"), C("f2"), C("f3"), O("free", "c")]
    over = [C("f1"), C("f2"), C("f3"), C("g3"), O("free", "b"), O("free", "c"), *tail]
    uaf = [C("f1"), C("f2"), O("free", "a"), C("f3"), C("g3"), O("free", "b"), O("free", "c"), *tail]
    remat = [
        C("f1"),
        C("f2"),
        O("free", "a"),
        C("f3"),
        O("free", "b"),
    ]  # b needed by g3 -> invalid
    remat = [C("f1", "fast"), C("f2"), O("free", "a"), C("f3"), C("g3"), O("free", "b"), O("free", "c"), C("f1"), *tail]
    # peak: during g3: 20+b30+c30+gb30=110 >100 -> make budget 110 for the valid ones
    g["budget_bytes"] = 110
    comp = [
        C("f1"),
        C("f2"),
        O("compress", "a", codec="fp8"),
        O("free", "a"),
        C("f3"),
        C("g3"),
        O("free", "b"),
        O("free", "c"),
        O("decompress", "a"),
        O("free_packed", "a"),
        *tail,
    ]
    race = [dict(a, deps=[]) for a in ok]
    twice = [*ok[:-1], C("upd"), *ok[-1:]]
    stale = [O("offload", "w"), *ok]
    res = []
    for name, p, want in [
        ("valid offload", ok, True),
        ("same, without the wait for the offload", race, False),
        ("valid recompute+fast algo", remat, True),
        ("use after free", uaf, False),
        ("over budget (keep all)", over, False),
        ("compress over budget by packed copy", comp, False),
        ("update twice", twice, False),
        ("stale host copy of w", stale, False),
        ("missing node", [*ok[:-2]], False),
        ("double free", [*ok, O("free", "gw")], False),
    ]:
        try:
            r = check(g, dict(actions=p))
            got = True
        except Bad as e:
            r = str(e)
            got = False
        print(("OK  " if got == want else "FAIL"), name, "->", r)
        res.append(got == want)
    g2 = dict(g, budget_bytes=118)
    print("compress at 118:", check(g2, dict(actions=comp)))
    return 0 if all(res) else 1


if __name__ == "__main__":
    sys.exit(main())
