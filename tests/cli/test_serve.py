"""``hespas serve`` as a user calls it: its keys, laws of its figures, typical mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from hespas.models.configuration import SHIPPED

Call = Callable[..., CompletedProcess[str]]
CONFIGURATION = SHIPPED / "Qwen" / "Qwen3-0.6B.json"
ON = ("--cluster", "4xH100_80GB", "--mesh", "tp=2")
SERVED = ("hespas", "serve", "Qwen/Qwen3-0.6B", *ON)
LOAD = ("--rate", "50", "--isl", "256", "--osl", "32", "--requests", "200")
KEYS = {
    *("ttft_s", "tpot_s", "latency_s", "output_tokens_per_s", "output_tokens_per_s_per_device"),
    *("goodput", "max_rate", "kv_blocks", "bound", "expected_error", "assumptions"),
}


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A directory with the configuration of a small model."""
    given = json.loads(CONFIGURATION.read_bytes())
    given |= {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 4096}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(given))
    return str(tmp_path / "model")


def test_a_load_is_served(call: Call, small: str, tmp_path: Path) -> None:
    def answered(*arguments: str) -> dict[str, Any]:
        done = call("hespas", "serve", small, *ON, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    answer = answered(*LOAD, "--slo", "ttft=1s,tpot=50ms")
    assert answer.keys() >= KEYS
    assert (answer["replicas"], answer["devices"], answer["requests"]) == (2, 4, 200)
    for name in ("ttft_s", "tpot_s", "latency_s"):
        values = answer[name]
        assert 0 < values["p50"] <= values["p90"] <= values["p99"]
    assert answer["ttft_s"]["mean"] < answer["latency_s"]["mean"]
    assert answer["goodput"] == pytest.approx(answer["requests_per_s"])
    assert answer["load"] == "stable"
    assert answer["expected_error"] == answer["published_errors"]["tpot"]
    assert 0 < answer["left_out_error"] < 1
    assert answer["output_tokens_per_s"] == pytest.approx(32 * answer["requests_per_s"])
    assert answered(*LOAD, "--slo", "ttft=1s,tpot=50ms") == answer

    slow = answered(*LOAD, "--host-time", "5ms")
    assert slow["tpot_s"]["p50"] == pytest.approx(answer["tpot_s"]["p50"] + 5e-3, rel=0.2)
    one = answered(*LOAD, "--replicas", "1")
    assert one["devices"] == 2
    assert one["latency_s"]["mean"] >= answer["latency_s"]["mean"]
    for engine in ("sglang", "trtllm"):
        assert answered(*LOAD, "--engine", engine)["engine"] == engine

    file = tmp_path / "load.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,5\n1,200,6\n")
    done = call("hespas", "serve", small, *ON, "--load", str(file))
    assert done.returncode == 0, done.stderr
    assert "2 requests on 4xH100_80GB" in done.stdout
    assert f"vllm serve {small} --tensor-parallel-size 2" in done.stdout


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "--enable-expert-parallel"), ("sglang", "--ep-size 2"), ("trtllm", "--ep_size 2")],
)
def test_engines_are_asked_for_whole_experts(
    call: Call, tmp_path: Path, engine: str, flag: str
) -> None:
    configuration = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "norm_topk_prob": True,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    options = ("--engine", engine, "--set", "expert_axes=tp", "--json")
    done = call("hespas", "serve", str(tmp_path), *ON, *LOAD, *options)
    assert done.returncode == 0, done.stderr
    assert flag in json.loads(done.stdout)["launch"]


def test_prefixes_prompts_apart_and_guesses_are_served_and_drawn(
    call: Call, small: str, tmp_path: Path
) -> None:
    def answered(*arguments: str) -> dict[str, Any]:
        done = call("hespas", "serve", small, *ON, *LOAD, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain = answered()
    assert plain["prefix_hit_rate"] is None
    at_once = ("--request-time", "0s", "--prompt-token-time", "0s")
    turns = ("--turns", "4", "--think", "100ms", "--router", "prefix", *at_once)
    kept, dropped = answered(*turns), answered(*turns, "--no-prefix-caching")
    assert kept["prefix_hit_rate"] > 0.5 > dropped["prefix_hit_rate"] == 0
    assert kept["ttft_s"]["mean"] <= dropped["ttft_s"]["mean"]
    assert "--no-enable-prefix-caching" in dropped["launch"]
    apart = answered("--prefill-replicas", "1")
    assert (apart["replicas"], apart["prefill_replicas"]) == (1, 1)
    assert len(apart["launch"].splitlines()) == 2
    guessed = answered("--speculative-tokens", "3", "--acceptance-rate", "0.8")
    assert guessed["tpot_s"]["mean"] < plain["tpot_s"]["mean"]

    result, page = tmp_path / "serve.json", tmp_path / "serve.html"
    result.write_text(json.dumps(plain))
    done = call("hespas", "report", str(result), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "First token against rate" in page.read_text()


def test_layers_are_cut_into_stages(call: Call, small: str, tmp_path: Path) -> None:
    given = json.loads((Path(small) / "config.json").read_bytes()) | {"num_hidden_layers": 3}
    (Path(small) / "config.json").write_text(json.dumps(given))

    def answered(mesh: str, *more: str) -> dict[str, Any]:
        arguments = ("--cluster", "4xH100_80GB", "--replicas", "1", "--mesh", mesh, *more)
        done = call("hespas", "serve", small, *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    alone = ("--concurrency", "1", "--isl", "256", "--osl", "32", "--requests", "10")
    whole, cut = answered("tp=2", *alone), answered("pipe=2,tp=2", *alone)
    assert [stage["layers"] for stage in cut["stages"]] == [2, 1]
    assert (cut["devices"], cut["stages"][0]["receive_s"], whole["stages"]) == (4, 0, [])
    # A token goes through the same layers, and from one stage to the next.
    assert cut["tpot_s"]["mean"] > whole["tpot_s"]["mean"]
    assert cut["tpot_s"]["mean"] < 1.5 * whole["tpot_s"]["mean"]
    assert cut["kv_blocks"] == min(stage["kv_blocks"] for stage in cut["stages"])
    assert "--tensor-parallel-size 2 " in cut["launch"]
    assert "--pipeline-parallel-size 2" in cut["launch"]
    served = answered("tp=2,pipe=2", *LOAD, "--engine", "sglang")
    assert [stage["layers"] for stage in served["stages"]] == [1, 2]
    assert served["launch"].startswith("python -m sglang.launch_server")
    assert "--tp-size 2 " in served["launch"]
    assert served["launch"].endswith("--pp-size 2")
    text = call(
        "hespas", "serve", small, "--cluster", "4xH100_80GB", "--mesh", "pipe=2,tp=2", *LOAD
    )
    assert "Stages                of 2, 1 layers" in text.stdout
    assert "(none with stages)" in text.stdout


def test_several_models_are_served_on_one_cluster(call: Call, small: str, tmp_path: Path) -> None:
    file, result, page = (tmp_path / name for name in ("models.yaml", "serve.json", "serve.html"))
    file.write_text(f"a: {{model: {small}, mesh: tp=2, rate: 50}}\nb: {{model: {small}, rate: 9}}")
    given = ("--cluster", "4xH100_80GB", "--requests", "50", "--osl", "32")
    done = call("hespas", "serve", str(file), *given, "--json", str(result))
    assert done.returncode == 0, done.stderr
    assert "2 models on 4xH100_80GB, 4 devices, 1 of them idle" in done.stdout
    answer = json.loads(result.read_text())
    assert [each["name"] for each in answer["models"]] == ["a", "b"]
    rates = [each["report"]["output_tokens_per_s"] for each in answer["models"]]
    assert answer["output_tokens_per_s"] == pytest.approx(sum(rates))
    done = call("hespas", "report", str(result), "-o", str(page))
    assert done.returncode == 0, done.stderr
    assert "2 models on 4xH100_80GB" in page.read_text()
    done = call("hespas", "serve", str(tmp_path / "none.yaml"), *given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SERVED, *LOAD, "--think", "1s"), "--think has no effect without --turns"),
        ((*SERVED, *LOAD, "--acceptance-rate", "0.5"), "without --speculative-tokens"),
        ((*SERVED, *LOAD, "--prefill-replicas", "2"), "beside 2 of 2 that compute prompts"),
        ((*SERVED, *LOAD, "--step-factors", "decoding=2"), "did you mean 'decode'"),
        ((*SERVED, *LOAD, "--two-batches"), "no tokens travel to experts"),
        ((*SERVED,), "no load is given"),
        ((*SERVED, *LOAD, "--concurrency", "3"), "--rate"),
        ((*SERVED, *LOAD[:-1], "0"), "--requests is 0"),
        ((*SERVED, *LOAD, "--engine", "vlm"), "did you mean 'vllm'"),
        ((*SERVED, *LOAD, "--replicas", "3"), "do not fit"),
        ((*SERVED, *LOAD, "--slo", "tptot=1ms"), "did you mean 'tpot'"),
        ((*SERVED, "--rate", "-1"), "--rate"),
        (("hespas", "serve", "Qwen/Qwen3-0.6B", *LOAD), "no cluster is given"),
        (("hespas", "serve", "Qwen/Qwen3-0.6B", "--cluster", "H100_80GB", *LOAD), "8xH100_80GB"),
        (("hespas", "search", "llama3-8b", *ON[:2], "--slo", "ttft=1s"), "without --serve"),
        (("hespas", "search", "llama3-8b", *ON, "--serve", "--rate", "1"), "--mesh has no effect"),
        (("hespas", "serve", "llama3-100m", *SERVED[3:], *LOAD), "has no step of decode"),
        (("hespas", "serve", "Qwen/Qwen3-8", "--cluster", "8xH100_80GB", *LOAD), "did you mean"),
        (
            (*SERVED, *LOAD[:2], "--isl", "40000", "--osl", "1000"),
            "the model's context 40960",
        ),
    ],
)
def test_mistakes_are_one_line(call: Call, arguments: tuple[str, ...], message: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_log_is_calibrated_with_and_its_factors_are_used(
    call: Call, small: str, tmp_path: Path
) -> None:
    log, kept = tmp_path / "log.csv", tmp_path / "kept"
    rows = [f"{0.01 * number},64,16,0.0001,0.004,0.003" for number in range(12)]
    head = "arrival_s,input_tokens,output_tokens,queue_s,ttft_s,tpot_s"
    log.write_text("\n".join([head, *rows]))
    given = ("--serving", str(log), "-o", str(kept), "--node", "H100_80GB")
    refused = call("hespas", "calibrate", *given)
    assert refused.returncode == 2
    assert "give --model" in refused.stderr
    done = call("hespas", "calibrate", *given, "--model", small, "--mesh", "tp=2", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert abs(answer["log"]["fitted"]["tpot_mean"]) < abs(answer["log"]["predicted"]["tpot_mean"])
    done = call("hespas", "serve", small, *ON, *LOAD, "--step-factors", str(kept), "--json")
    assert done.returncode == 0, done.stderr
    factor = f"{answer['log']['decode_factor']:.3g} times"
    assert any(factor in assumption for assumption in json.loads(done.stdout)["assumptions"])
    done = call("hespas", "serve", small, *ON, *LOAD, "--step-factors", str(tmp_path / "none"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
