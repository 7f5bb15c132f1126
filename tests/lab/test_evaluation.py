"""Arms, and the command: a run that is killed and resumed, and what it reports."""

import json

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import EntropixError
from entropix_mlx.lab.evaluate import (
    ARMS,
    Arm,
    answers,
    arms_of,
    parse_record,
    plan,
    prompt_of,
    read_records,
    seed_of,
)
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.settings import Settings
from entropix_mlx.summary import forward_tokens
from tests.lab.test_questions import of

SHIPPED = "smollm2-135m-instruct"


def test_arms_are_all_combinations_of_names_and_temperatures():
    names = ("temperature", "greedy", "reference")
    arms = {arm.name: arm.settings for arm in arms_of(names, (0.7, 2.0), Settings(profile=SHIPPED))}
    assert {name: (one.sampler, one.temperature, one.profile) for name, one in arms.items()} == {
        "temperature T=0.7": ("temperature", 0.7, SHIPPED),
        "temperature T=2": ("temperature", 2.0, SHIPPED),
        "greedy": ("greedy", None, SHIPPED),  # it takes no temperature
        "reference T=0.7": ("entropix", 0.7, "reference"),
        "reference T=2": ("entropix", 2.0, "reference"),
    }
    with pytest.raises(EntropixError, match="forks"):
        arms_of(("frks",), (None,), Settings())


def test_each_arm_differs_from_its_control_in_one_thing():
    arms = {arm.name: arm.settings for arm in arms_of(tuple(ARMS), (None,), Settings())}
    profile = {name: Profile.load().replace(one.changes) for name, one in arms.items()}
    assert profile["cold"].branch.max_branches == profile["cold"].think.max_insertions == 0
    assert profile["forks"].branch.max_branches > 0
    assert profile["thoughts"].think.max_insertions > 0
    for name, section in (("forks", "branch"), ("hot", "branch"), ("thoughts", "think")):
        changed = profile[name].replace({section: ARMS["cold"]["changes"][section]})
        if name == "hot":
            changed = changed.replace({"branch": {"unforked": "argmax"}})
        assert changed == profile["cold"]


def test_questions_and_seeds_have_random_numbers_of_their_own():
    one, other = of("arithmetic", limit=2)
    assert len({seed_of(one, 0), seed_of(one, 1), seed_of(other, 0)}) == 3
    planned = plan([one], [Arm("a", Settings()), Arm("b", Settings())], "model", seed=4, seeds=2)
    assert [(each.arm, each.seed_number) for each in planned] == [
        *(("a", 0), ("a", 1), ("b", 0), ("b", 1))
    ]
    assert [each.settings.seed for each in planned] == [seed_of(one, 4), seed_of(one, 5)] * 2


def test_worked_examples_are_earlier_turns_or_plain_text():
    (question,) = of("capitals", limit=1, examples=1)
    chat = prompt_of(question, "chat", 1, Settings())
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]
    plain = prompt_of(question, "plain", 1, Settings()).prompt
    assert plain.startswith("Question: ")
    assert plain.endswith(f"\n\nQuestion: {question.text}\nAnswer:")


def command(folder, output, *more):
    return [
        "eval", "--model", str(folder), "--task", "arithmetic", "--limit", "20", "--arm",
        "greedy", "--arm", "temperature", "--form", "plain", "--examples", "1",
        "--max-tokens", "6", "--output", str(output), *more,
    ]  # fmt: skip


def keys(path):
    return [(one.question, one.arm, one.seed) for one in read_records(path)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model, byte_tokenizer):
    """A folder with a model and the answers of a run."""
    from entropix_mlx.checkpoints.convert import save

    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny").mkdir()
    save(tiny_model.inner, byte_tokenizer, folder / "tiny")
    assert cli.main(command(folder / "tiny", folder / "whole.jsonl")) == 0
    return folder


def test_a_run_resumes_after_being_killed_in_the_middle_of_a_line(whole, tmp_path):
    cut = tmp_path / "cut.jsonl"
    expected = keys(whole / "whole.jsonl")
    assert len(expected) == 40
    assert len({(question, seed) for question, _, seed in expected}) == 20, "arms share seeds"
    for end in (-300, 7000):
        cut.write_bytes((whole / "whole.jsonl").read_bytes()[:end])
        assert cli.main(command(whole / "tiny", cut, "--resume")) == 0
        assert sorted(keys(cut)) == sorted(expected)


def test_another_run_is_not_resumed(whole, capsys):
    run = command(whole / "tiny", whole / "whole.jsonl")
    for more in ([], ["--resume", "--seed", "5"]):
        assert cli.main([*run, *more]) == 2
        assert "resume" in capsys.readouterr().err


def test_tables_from_files_alone(whole, tmp_path, capsys):
    files = [str(whole / "whole.jsonl")]
    assert cli.main(["eval", *files]) == 0
    out = capsys.readouterr().out
    assert "temperature − greedy" in out
    assert "mean_logprob" in out
    again = tmp_path / "again.jsonl"
    again.write_text((whole / "whole.jsonl").read_text())
    assert cli.main(["eval", *files, str(again), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracies"][0]["n"] == 40
    assert cli.main(["eval", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err


def test_forward_tokens_include_discarded_ones(tiny_model, byte_tokenizer):
    from entropix_mlx import stream_generate

    always = {"thresholds": {"branch_max_entropy": 99.0, "branch_min_varentropy": -1.0,
                             "branch_max_margin": 2.0, "low_entropy": -1.0,
                             "think_max_varentropy": -1.0},
              "branch": {"max_branches": 8}}  # fmt: skip
    options = {"max_tokens": 12, "seed": 0, "changes": always}
    steps = list(stream_generate(tiny_model, byte_tokenizer, [1, 2, 3], **options))
    forks = [step.fork for step in steps if step.fork]
    assert forks
    committed, discarded = forward_tokens(steps)
    assert committed == len(steps)
    followed = sum(len(branch.tokens) for fork in forks for branch in fork.branches)
    won = sum(step.origin == "branch" for step in steps)
    beside = sum(fork.lookahead_tokens for fork in forks)
    assert discarded == followed - won + beside + sum(step.rolled_back for step in steps)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--arm", "nowhere"], "nowhere"),
        (["a", "--task", "facts"], "--task"),
        (["--resume"], "--resume"),
        (["--task", "nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_reported_before_the_model_is_loaded(options, names, capsys):
    assert cli.main(["eval", "--model", "no/such", "--limit", "2", *options]) == 2
    assert names in capsys.readouterr().err


def test_an_arm_with_several_answers_costs_all_of_them(tiny_model, byte_tokenizer):
    (several,) = arms_of(("several",), (None,), Settings(max_tokens=4))
    planned = plan(of("arithmetic", limit=2), [several], "tiny")
    for task, line in answers(tiny_model, byte_tokenizer, planned):
        record = parse_record(line)
        drawn = line["answers"]["answers"]
        assert len(drawn) == task.settings.answers == 8
        cost = sum(one["forward_tokens"] for one in drawn)
        assert record.committed + record.discarded == cost >= 8
