"""Slices as text."""

import json
import subprocess
import sys

import pytest
import yaml
from doubles.machines import gpus

from dradriver import api
from dradriver.commands import printing
from dradriver.gpu.names import number_gpus
from dradriver.gpu.offer import make_offer
from dradriver.gpu.policy import GpuRule, OfferPolicy
from dradriver.gpu.profiles import MigOffer
from dradriver.publish import slice_name
from dradriver.resource import (
    CounterConsumption,
    CounterSet,
    Device,
    RequestPolicy,
    Slice,
    Taint,
    Version,
    lay_out,
    same_content,
)
from dradriver.resource.wire import slice_spec

NODE = "node-a"


def offer(machine="1xh100-80gb,1xt4"):
    found = gpus(machine)
    policy = OfferPolicy(default=GpuRule(mig=MigOffer.DYNAMIC))
    return make_offer(found, pool=NODE, policy=policy, numbers=number_gpus(found, {}))


def named(*slices):
    return {slice_name(index, driver=api.DRIVER_NAME, node_name=NODE): one for index, one in enumerate(slices)}


def rows(text):
    head, *lines = text.splitlines()
    columns = [head.index(word) for word in head.split()]
    ends = [*columns[1:], None]
    return [[line[start:end].strip() for start, end in zip(columns, ends, strict=True)] for line in lines]


# --- manifests ------------------------------------------------------------------------------------


def test_manifests_are_a_complete_pool_of_generation_1():
    slices = lay_out(offer().pool)
    made = printing.manifests(named(*slices), node_name=NODE)
    assert [one["metadata"] for one in made] == [{"name": f"0000{n}-gpu.nvidia.com-node-a"} for n in range(4)]
    for manifest, content in zip(made, slices, strict=True):
        assert (manifest["apiVersion"], manifest["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
        assert manifest["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 4}
        wanted = slice_spec(content, driver=api.DRIVER_NAME, node_name=NODE, pool={"name": NODE})
        assert same_content(manifest["spec"], wanted)


def test_yaml_and_json_say_the_same():
    made = printing.manifests(named(*lay_out(offer().pool)), node_name=NODE)
    text = printing.as_yaml(made)
    assert text.startswith("---\napiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n")
    assert list(yaml.safe_load_all(text)) == made
    assert json.loads(printing.as_json(made)) == {"apiVersion": "v1", "kind": "List", "items": made}


@pytest.mark.parametrize(
    "word", ["off", "yes", "null", "~", "1e3", "0x10", "012", "1_000", "0000:09:00.0", "2026-01-02", "", "a: b", "# c"]
)
def test_yaml_keeps_strings_that_look_like_something_else(word):
    made = printing.manifests(named(Slice(devices=(Device(name="d", attributes={"a": word}),))), node_name=NODE)
    (read,) = yaml.safe_load_all(printing.as_yaml(made))
    assert read["spec"]["devices"][0]["attributes"]["a"] == {"string": word}


def test_all_kinds_of_content_survive():
    content = Slice(
        devices=(
            Device(
                name="d",
                attributes={"text": "None", "number": 3, "flag": True, "version": Version("1.2.3")},
                capacity={"memory": 80 << 30, "odd": 12345},
                consumes=(CounterConsumption(counter_set="s", counters={"c": 2}),),
                taints=(Taint(key="k/x", value="v", effect="NoSchedule", time_added="2026-01-02T03:04:05Z"),),
            ),
        ),
    )
    (read,) = yaml.safe_load_all(printing.as_yaml(printing.manifests(named(content), node_name=NODE)))
    assert read["spec"]["devices"] == [
        {
            "name": "d",
            "attributes": {
                "text": {"string": "None"},
                "number": {"int": 3},
                "flag": {"bool": True},
                "version": {"version": "1.2.3"},
            },
            "capacity": {"memory": {"value": "80Gi"}, "odd": {"value": "12345"}},
            "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "2"}}}],
            "taints": [{"key": "k/x", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}],
        }
    ]  # fmt: skip


# --- table ----------------------------------------------------------------------------------------


def test_a_line_for_each_device():
    made = offer()
    slices = lay_out(made.pool)
    found = rows(printing.table(named(*slices), made))
    devices = [device for one in slices for device in one.devices]
    assert [row[1] for row in found] == [device.name for device in devices]
    h100, t4 = gpus("1xh100-80gb,1xt4")
    by_name = {row[1]: row for row in found}
    assert by_name["gpu-0-mig-3g40gb-9-4"] == [
        "00001-gpu.nvidia.com-node-a", "gpu-0-mig-3g40gb-9-4", "mig", "3g.40gb", h100.uuid, "40448Mi",
        "memory-slice-4..7", "-",
    ]  # fmt: skip
    assert by_name["gpu-1"][2:] == ["gpu", "-", t4.uuid, "15Gi", "-", "-"]


@pytest.mark.parametrize(
    ("counters", "text"),
    [
        ({"memory-slice-0": 1}, "memory-slice-0"),
        ({"memory-slice-0": 1, "memory-slice-1": 1, "memory-slice-2": 1}, "memory-slice-0..2"),
        ({"memory-slice-9": 1, "memory-slice-10": 1}, "memory-slice-9..10"),
        ({"memory-slice-0": 1, "memory-slice-2": 1}, "memory-slice-0,memory-slice-2"),
        ({"a-0": 1, "b-1": 1}, "a-0,b-1"),
        ({"memory-slice-0": 1, "ofa-engines": 1, "decoders": 2}, "memory-slice-0,ofa-engines,decoders=2"),
        ({"memory-slice-0": 1, "memory-slice-1": 2}, "memory-slice-0,memory-slice-1=2"),
    ],
)
def test_counters_in_few_words(counters, text):
    device = Device(name="d", consumes=(CounterConsumption(counter_set="s", counters=counters),))
    ((*_, found, _),) = rows(printing.table(named(Slice(devices=(device,))), offer()))
    assert found == text


def test_what_a_device_does_not_say_is_a_dash_and_taints_are_told():
    taints = (Taint(key="a/b", effect="NoExecute"), Taint(key="c/d", value="x", effect="NoSchedule"))
    slices = (
        Slice(counter_sets=(CounterSet(name="s", counters={"c": 1}),)),
        Slice(devices=(Device(name="?", taints=taints),)),
    )
    (row,) = rows(printing.table(named(*slices), offer()))
    assert row == ["00001-gpu.nvidia.com-node-a", "?", "-", "-", "-", "-", "-", "a/b:NoExecute c/d=x:NoSchedule"]


def test_columns_have_no_blanks_at_their_end():
    assert printing.aligned([("A", "BB"), ("aaa", "b")]) == "A     BB\naaa   b\n"


def test_a_reader_who_has_seen_enough_is_not_told():
    program = "from dradriver.commands.printing import write; write('x' * 10_000_000)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.read(1) == "x"
        writer.stdout.close()
        assert writer.stderr.read() == ""
        assert writer.wait(timeout=60) == 0


def test_shares_have_a_column_where_there_are_some():
    policies = {"shares": RequestPolicy(default=1, least=1)}
    shared = Device(name="gpu-0", capacity={"shares": 4}, policies=policies)
    slices = named(Slice(devices=(shared, Device(name="gpu-1"))))
    text = printing.table(slices, offer())
    column = text.splitlines()[0].split().index("SHARES")
    assert [row[column] for row in rows(text)] == ["4", "-"]
    assert "SHARES" not in printing.table(named(Slice(devices=(Device(name="gpu-1"),))), offer())
