"""`holdfast judge`: files and models of answers, what is written and shown, going on, the key, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evaluation import fake_endpoint as fake
from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.cli import judge
from holdfast.cli import main as main_module
from holdfast.cli.main import main
from holdfast.evaluation.judge import answers_store
from holdfast.evaluation.judge.answers_store import (
    GenerationSettings,
    answer_of,
    generated_answers,
    prompt_of,
    read_answers,
    read_prompts,
    store_of,
)
from holdfast.support.files import read_json, read_jsonl, write_jsonl
from holdfast.support.ledger import read_ledger

pytest.importorskip("openai", reason="judging needs the extra 'judge'")

SECRET = "sk-very-secret-0123456789"
COMMAND = ("holdfast.cli.judge", "judges")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the answers of two models to ten prompts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setitem(main_module.COMMANDS, "judge", COMMAND)
    prompts = [f"Say {i}." for i in range(10)]
    write_jsonl(
        "tuned.jsonl",
        [{"instruction": p, "output": f"{i}" + "!" * (i % 4), "generator": "tuned-7b"} for i, p in enumerate(prompts)],
    )
    write_jsonl("base.jsonl", [{"prompt": p, "answer": f"{i}!"} for i, p in enumerate(prompts)])
    write_jsonl("prompts.jsonl", [{"prompt": p} for p in prompts[:4]])
    return tmp_path


def words(server: FakeEndpoint | None, *more: str, candidate: str = "tuned.jsonl") -> list[str]:
    url = server.url if server is not None else "http://127.0.0.1:9/v1"
    return [
        "judge",
        candidate,
        "--reference",
        "base.jsonl",
        "--judge_model",
        "big",
        "--base_url",
        url,
        "--output_dir",
        "judged",
        *more,
    ]


def everything(folder: Path) -> str:
    return "".join(
        p.read_text(errors="replace") for p in folder.rglob("*") if p.is_file() and p.suffix != ".safetensors"
    )


# --------------------------------------------------------------------------------------------------------------- files


def test_two_files(place, capsys):
    with FakeEndpoint() as server:
        assert main(words(server, "--price_in", "2", "--price_out", "10")) == 0
        asked = len(server.asked)
        shown = capsys.readouterr().out
        assert main(words(server)) == 0
        assert len(server.asked) == asked
    found = read_json("judged/win_rate.json")
    same = 2 + 1  # i % 4 == 1: as many exclamation marks, and equal text
    assert asked == 2 * (10 - same) == found["judgements"]["questions"]
    assert [found[k] for k in ("n", "identical", "ties", "wins", "losses")] == [10, same, same, 4, 3]
    assert [found[side]["label"] for side in ("candidate", "reference")] == ["tuned-7b", "base"]
    judge_of = {"model": "big", "base_url": server.url, "own_template": False, "max_tokens": 8, "temperature": 0.0}
    assert judge_of.items() <= found["judge"].items()
    assert 0.5 < found["value"] < 1 and found["interval"][0] < found["value"] < found["interval"][1]
    assert set(found["versions"]) == {"holdfast", "openai", "numpy", "scipy"} and found["cost"] is None
    assert (found["prompt_tokens"], found["judgements"]["asked"]) == (1400, 0)
    rows = list(read_jsonl("judged/win_rate.samples.jsonl"))
    assert sum(r["preference"] for r in rows) / 10 == pytest.approx(found["value"])
    for word in (
        "tuned-7b against base, judged by big",
        "win rate",
        "at equal lengths*",
        f"{found['value']:.1%}",
        "position",
        "not AlpacaEval",
        "wins, ties, losses  4, 3 (3 with equal answers), 3",
        "14 of 14 by log-probability",
        "cost                0.0031",
    ):
        assert word in shown, word
    assert "14 from before" in capsys.readouterr().out


def test_the_reference_itself_has_one_half_without_a_request(place):
    with FakeEndpoint() as server:
        assert main(words(server, candidate="base.jsonl")) == 0
    assert server.asked == [] and read_json("judged/win_rate.json")["value"] == 0.5


def test_prompts_choose_and_limit(place, capsys):
    with FakeEndpoint() as server:
        for more, n in ((("--prompts", "prompts.jsonl"), 4), (("--limit", "2"), 2)):
            assert main(words(server, *more)) == 0
            assert read_json("judged/win_rate.json")["n"] == n
        write_jsonl("prompts.jsonl", [{"prompt": "Say 1."}, {"prompt": "Sing."}])
        assert main(words(server, "--prompts", "prompts.jsonl")) == 2
    assert "has no answer to 1 of 2 prompts (such as 'Sing.')" in capsys.readouterr().err


def test_a_template_of_ones_own_and_a_yaml(place):
    Path("t.txt").write_text("{instruction}|{first}|{second}")
    Path("judge.yaml").write_text(
        "template: t.txt\nmax_tokens: 3\nreference: base.jsonl\njudge_model: big\noutput_dir: judged\n"
    )
    answer = lambda handler, asked: fake.body(json.dumps(completion("M", 0.25)).encode())(handler, asked)
    with FakeEndpoint(always=answer) as server:
        assert main(["judge", "tuned.jsonl", "--config", "judge.yaml", "--base_url", server.url]) == 0
    assert server.messages[0].count("|") == 2 and server.asked[0].body["max_tokens"] == 3
    found = read_json("judged/win_rate.json")
    assert found["first_preferred"] == pytest.approx(0.25) and found["judge"]["own_template"] is True


def test_a_dry_run_sends_and_writes_nothing(place, capsys):
    with FakeEndpoint() as server:
        assert main(words(server, "--dry_run", "--price_in", "1000")) == 0
        shown = capsys.readouterr().out
        assert server.asked == [] and not Path("judged").exists()
        assert "requests: 14 to" in shown and "3 pairs have equal answers" in shown and "cost about" in shown
        assert main(words(server, "--limit", "3")) == 0
        before = sorted((p.name, p.stat().st_mtime_ns) for p in Path("judged").iterdir())
        assert main(words(server, "--dry_run")) == 0
    assert "requests: 10 to" in capsys.readouterr().out
    assert sorted((p.name, p.stat().st_mtime_ns) for p in Path("judged").iterdir()) == before


def test_all_mistakes_show_at_once(place, capsys):
    Path("bad.txt").write_text("{first} only")
    argv = [
        "judge",
        "tuned.jsonl",
        "--reference",
        "bas.jsonl",
        "--prompts",
        "gone.jsonl",
        "--judge_model",
        "x",
        "--base_url",
        "localhost:8000",
        "--template",
        "bad.txt",
        "--api_key_env",
        "NOWHERE",
        "--top_logprobs",
        "50",
        "--output_dir",
        "prompts.jsonl",
    ]
    assert main(argv) == 2
    shown = capsys.readouterr().err
    for word in (
        "Did you mean 'base.jsonl'",
        "no such file: gone.jsonl",
        "--base_url: expected an address",
        "{instruction} and {second} missing",
        "--top_logprobs: expected a whole number of at least 5 and at most 20, got '50'",
        "NOWHERE is not set",
        "found a file",
    ):
        assert word in shown, word
    assert not Path("judged").exists()


# ------------------------------------------------------------------------------------------------------------- the key


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(place, monkeypatch, capfd):
    monkeypatch.setenv("MY_KEY", SECRET)
    with FakeEndpoint(faults=[fake.status(500, f"echo {SECRET}")]) as server:
        assert main(words(server, "--api_key_env", "MY_KEY", "--workers", "1")) == 0
        assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {SECRET}"}
        server.always = fake.status(401, f"Incorrect API key provided: {SECRET}")
        for more in ([], ["--debug"]):
            assert main([*words(server, "--api_key_env", "MY_KEY", "--max_tokens", "9"), *more]) == 2
        server.always = fake.status(418, f"tea for {SECRET}")
        assert main(words(server, "--api_key_env", "MY_KEY", "--max_tokens", "10")) == 1
    shown = capfd.readouterr()
    assert "Check the key in the environment variable MY_KEY" in shown.err
    assert SECRET not in shown.out + shown.err + everything(place)


def test_a_key_goes_only_where_it_was_meant_to_go(place, monkeypatch, capsys):
    """OpenAI's variable counts for OpenAI's address; any other needs --api_key_env."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with FakeEndpoint() as server:
        assert main(words(server)) == 0
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer none"}
    for url, key in (
        ("https://api.openai.com/v1", SECRET),
        ("https://api.openai.com.example.org/v1", None),
        ("http://user@host/v1?api.openai.com", None),
    ):
        argv = words(None)[1:]
        argv[argv.index("--base_url") + 1] = url
        assert judge.COMMAND.read(argv).contest().endpoint.api_key == key
    assert main(words(None, "--api_key_env", SECRET)) == 2
    assert SECRET not in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- failing and stopping


def test_few_failures_are_borne_and_many_are_not(place, capsys):
    failing = lambda handler, asked: "Say 2." in asked.message and fake.status(400, "no")(handler, asked)
    with FakeEndpoint(always=failing) as server:
        assert main(words(server, "--most_failures", "0.2")) == 0
        assert (read_json("judged/win_rate.json")["n"], read_json("judged/win_rate.json")["failed"]) == (9, 1)
        assert main(words(server)) == 1
        assert "2 of 14 requests failed for good" in capsys.readouterr().err
        server.always = None
        before = len(server.asked)
        assert main(words(server)) == 0
        assert len(server.asked) == before + 2 and read_json("judged/win_rate.json")["n"] == 10
        server.always = fake.status(400, "no")
        assert main([*words(server), "--max_tokens", "2", "--prompts", "prompts.jsonl", "--limit", "1"]) == 1
    assert "no pair was judged in both orders" in capsys.readouterr().err


def start(server: FakeEndpoint) -> subprocess.Popen:
    command = f"main.COMMANDS['judge'] = {COMMAND!r}"
    code = f"import sys; from holdfast.cli import main; {command}; sys.exit(main.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words(server, "--workers", "2")], stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_stopped_in_the_middle_it_goes_on(number, code, place):
    """The process is stopped while two requests are on their way; what had been answered before is not asked again."""
    with FakeEndpoint() as server:
        server.faults = [fake.fine() for _ in range(5)] + [fake.late(60)] * 2
        running = start(server)
        until = time.monotonic() + 30
        while (
            not (len(server.asked) >= 7 and Path("judged/judgements.jsonl").read_text().count("\n") == 5)
            and time.monotonic() < until
        ):
            time.sleep(0.02)
        running.send_signal(number)
        _, error = running.communicate(timeout=20)
        assert running.returncode == code, error
        assert "Traceback" not in error
        kept = read_ledger("judged/judgements.jsonl")
        answered = {asked.message for asked in server.answered}
        assert len(kept) == len(answered) == 5
        before = len(server.asked)
        assert main(words(server)) == 0
        later = server.messages[before:]
    assert len(later) == len(set(later)) == 14 - 5 and answered.isdisjoint(later)


# -------------------------------------------------------------------------------------------------------------- models


@pytest.fixture
def models(place: Path, model_folder: Path, tokenizer) -> Path:
    """Folders model (without a chat template) and other (another seed, with one)."""
    from tiny import build_model

    os.symlink(model_folder, place / "model")
    build_model(seed=4).save_pretrained(place / "other")
    tokenizer.save_pretrained(place / "other")
    (place / "other" / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<reply>"
    )
    return place


def test_models_answer_once(models, capsys, monkeypatch):
    argv = [
        "judge",
        "other",
        "--reference",
        "model",
        "--prompts",
        "prompts.jsonl",
        "--judge_model",
        "big",
        "--output_dir",
        "judged",
        "--max_new_tokens",
        "6",
        "--device",
        "cpu",
    ]
    with FakeEndpoint(rule=lambda i, a, b: completion("m", 0.6)) as server:
        argv += ["--base_url", server.url]
        assert main([*argv, "--dry_run"]) == 0
        shown = capsys.readouterr().out
        assert "other: 4 of 4 answers to generate" in shown and "up to 8" in shown and not Path("judged").exists()
        assert main(argv) == 0
        stores = sorted(p.name for p in Path("judged").glob("answers.*.jsonl"))
        assert [name.partition("-")[0] for name in stores] == ["answers.model", "answers.other"]
        rows = list(read_jsonl(Path("judged") / stores[1]))
        assert [set(r) for r in rows] == [{"instruction", "output", "generator", "tokens", "cut"}] * 4
        capsys.readouterr()
        monkeypatch.setattr(answers_store, "_load", lambda *_: pytest.fail("loaded though all answers are there"))
        asked = len(server.asked)
        assert main(argv) == 0
        assert len(server.asked) == asked
        assert main([*argv, "--dry_run"]) == 0
        assert "requests: 0 to" in capsys.readouterr().out
        # the stored answers are an ordinary file of answers
        assert main(["judge", f"judged/{stores[1]}", "--reference", f"judged/{stores[0]}", *argv[4:]]) == 0
        assert len(server.asked) == asked
    found = read_json("judged/win_rate.json")
    assert found["candidate"]["label"].startswith("other-") and found["candidate"]["name"] == stores[1]


def test_answers_are_the_models_greedy_ones(models):
    """Batched as one by one, through a chat template where there is one, whatever the sampling defaults."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = json.loads(Path("other/generation_config.json").read_text())
    Path("other/generation_config.json").write_text(
        json.dumps({**saved, "do_sample": True, "repetition_penalty": 5.0, "temperature": 9.0})
    )
    prompts = ["Hi", "The quick brown fox jumps over the lazy dog.", "def add(a, b):"]
    settings = GenerationSettings(max_new_tokens=5, batch_size=3, device="cpu")
    for name in ("model", "other"):
        found = generated_answers(name, prompts, store_of("judged", name, settings), settings)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
        for prompt in prompts:
            text = f"<user>{prompt}<reply>" if name == "other" else prompt
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            given = len(ids)
            for _ in range(5):
                with torch.no_grad():
                    ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
                if ids[-1] == tokenizer.eos_token_id:
                    break
            assert found.answers[prompt] == tokenizer.decode(ids[given:], skip_special_tokens=True).strip(), (
                name,
                prompt,
            )
    bare = generated_answers(
        "other",
        prompts,
        store_of("x", "other", settings),
        GenerationSettings(max_new_tokens=5, device="cpu", chat_template=False),
    )
    assert bare.answers != found.answers


def test_a_store_is_named_by_all_that_decides_the_answers(models):
    settings = GenerationSettings(device="cpu")
    names = {
        store_of("d", "model", settings),
        store_of("d", "other", settings),
        store_of("d", "other", GenerationSettings(max_new_tokens=9)),
    }
    assert store_of("d", "model", GenerationSettings(device="cuda")) in names
    Path("other/chat_template.jinja").write_text("changed")
    names.add(store_of("d", "other", settings))
    assert len(names) == 4


def test_an_adapter_answers_through_its_base(models):
    """And is another model with another base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    for base in ("model", "other"):
        adapted = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base),
            LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=True),
        )
        adapted.peft_config["default"].base_model_name_or_path = base
        adapted.save_pretrained(f"{base}-lora")
    settings = GenerationSettings(max_new_tokens=3, device="cpu", chat_template=False)
    stores = [store_of("a", name, settings) for name in ("model", "model-lora", "other-lora")]
    assert len(set(stores)) == 3
    prompts = ["Hi", "The quick brown fox"]
    plain, adapted = (
        generated_answers(name, prompts, store, settings)
        for name, store in zip(("model", "model-lora"), stores, strict=False)
    )
    assert adapted.answers == plain.answers  # a fresh adapter adds nothing


def test_generation_goes_on_where_it_was(models, monkeypatch):
    settings = GenerationSettings(max_new_tokens=4, batch_size=2, device="cpu")
    prompts = [f"{'long ' * i}prompt" for i in range(7)]
    whole = generated_answers("model", prompts, store_of("a", "model", settings), settings)
    store = store_of("b", "model", settings)

    def stops(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generated_answers("model", prompts, store, settings, progress=stops)
    assert len(read_ledger(store, key="instruction")) == 4
    asked = []
    answer = answers_store._answer
    monkeypatch.setattr(
        answers_store, "_answer", lambda m, t, prompts, s: asked.extend(prompts) or answer(m, t, prompts, s)
    )
    assert generated_answers("model", prompts, store, settings).answers == whole.answers
    assert sorted(asked, key=len) == sorted(prompts, key=len)[:3]


def test_what_a_model_cannot_answer_is_said(models, capsys):
    write_jsonl("long.jsonl", [{"prompt": "word " * 300}, {"prompt": "Hi"}])
    argv = ["judge", "model", "--reference", "base.jsonl", "--prompts", "long.jsonl", *words(None)[4:]]
    assert main(argv) == 2
    assert "1 of 2 prompts fill the model's context of 128 tokens" in capsys.readouterr().err
    assert main(["judge", "model", *words(None)[2:]]) == 2
    assert "prompts: is missing" in capsys.readouterr().err
    Path("empty").mkdir()
    assert main(["judge", "empty", "--reference", "base.jsonl", "--prompts", "prompts.jsonl", *words(None)[4:]]) == 2
    assert "model.safetensors" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------- files' forms


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"instruction": " Do it. ", "output": " Done. ", "generator": "x"}, "Do it.", "Done."),
        ({"instruction": "Sum.", "input": "1 2", "output": "3"}, "Sum.\n\n1 2", "3"),
        ({"instruction": "Sum.", "input": "", "output": ""}, "Sum.", ""),
        ({"instruction": "Sum.", "instances": [{"input": "1 2", "output": "3"}]}, "Sum.\n\n1 2", None),
        ({"prompt": "Q", "answer": "A"}, "Q", "A"),
        ({"prompt": "Q", "completion": "A"}, "Q", "A"),
        ({"question": "Q", "response": "A"}, "Q", "A"),
        ({"turns": ["one", "two"]}, "one", None),
        ({"text": "T"}, "T", None),
        (
            {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]},
            "Q",
            "A",
        ),
        ({"id": 1}, None, None),
        ({"prompt": None}, None, None),
        ({"prompt": "  "}, None, None),
        ({"prompt": 3, "answer": 4}, None, None),
    ],
)
def test_rows(row, prompt, answer):
    assert (prompt_of(row), answer_of(row)) == (prompt, answer)


def test_files_that_do_not_fit(place):
    from holdfast.errors import DataError

    write_jsonl("no_answer.jsonl", [{"prompt": "a", "answer": "b"}, {"prompt": "c"}])
    with pytest.raises(DataError, match=r"1 rows lack\s+one \(the first is row 2\)"):
        read_answers("no_answer.jsonl")
    assert list(read_answers("base.jsonl").answers) == [f"Say {i}." for i in range(10)], "in the order of the file"
    write_jsonl("no_prompt.jsonl", [{"id": 1}])
    with pytest.raises(DataError, match="expected a prompt in every row"):
        read_prompts("no_prompt.jsonl")
    Path("x.txt").write_text("hello")
    with pytest.raises(DataError, match=r"got '\.txt'"):
        read_prompts("x.txt")
    write_jsonl("twice.jsonl", [{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "2"}])
    found = read_answers("twice.jsonl")
    assert found.answers == {"a": "1"} and "more than once" in found.notes[0]
    assert read_prompts("twice.jsonl") == ["a"]


def test_known_prompt_files(shared_data):
    assert len(read_prompts(shared_data / "instruct_fastchat" / "vicuna_bench_question.jsonl")) == 80
    assert len(read_prompts(shared_data / "instruct_fastchat" / "mt_bench_question.jsonl")) == 80
    found = read_prompts(shared_data / "instruct_self_instruct" / "user_oriented_instructions.jsonl")
    assert len(found) > 240 and found[0].endswith("please let me know.")


# ------------------------------------------------------------------------------------------------------- a real server


@pytest.mark.slow
def test_a_real_server(place):
    """`transformers serve` with a model that answers "m", without log-probabilities: what is shown first wins."""
    missing = [name for name in ("fastapi", "uvicorn") if not __import__("importlib.util").util.find_spec(name)]
    if missing:
        pytest.skip(f"needs transformers[serving]: {', '.join(missing)} not installed")
    save_yes_sayer(place / "sayer")
    port = free_port()
    script = Path(sys.executable).with_name("transformers")
    with open("serve.log", "w") as log:
        server = subprocess.Popen(
            [script, "serve", place / "sayer", "--port", str(port), "--device", "cpu"], stdout=log, stderr=log
        )
    try:
        wait_for(port, server)
        argv = words(None)
        argv[argv.index("--base_url") + 1] = f"http://localhost:{port}/v1"
        argv[argv.index("--judge_model") + 1] = str(place / "sayer")
        assert main(argv) == 0
    finally:
        server.terminate()
        server.wait(20)
    found = read_json("judged/win_rate.json")
    assert (found["value"], found["first_preferred"], found["order_changes"], found["n"]) == (0.5, 1.0, 1.0, 10)
    assert (found["judgements"]["judged"], found["judgements"]["by_logprobs"]) == (14, 0) and found[
        "completion_tokens"
    ] == 28
    assert any("without log-probabilities" in note for note in found["notes"])
    assert {row["reply"] for row in read_ledger("judged/judgements.jsonl").values()} == {"m"}


def save_yes_sayer(folder: Path) -> None:
    """A Llama whose layers add nothing: any token is followed by "m", and "m" by the end."""
    import torch

    from tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    model = build_model(tie=False)
    letter, end = tokenizer.convert_tokens_to_ids("m"), tokenizer.eos_token_id
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        embedding = model.model.embed_tokens.weight
        embedding[:, 0] = 1.0
        embedding[letter, 0], embedding[letter, 1] = 0.0, 1.0
        model.lm_head.weight[letter, 0] = model.lm_head.weight[end, 1] = 1.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def wait_for(port: int, server: subprocess.Popen) -> None:
    import urllib.request

    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"the server did not come up:\n{Path('serve.log').read_text()[-3000:]}")
