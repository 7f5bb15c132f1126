"""Arms, studies, and the command: a run that is killed and resumed, and what it reports."""

from pathlib import Path

import pytest

from entropix_mlx import cli
from entropix_mlx.errors import EntropixError
from entropix_mlx.lab.evaluation.arms import (
    Arm,
    answers,
    arms_of,
    named_arm,
    plan,
    prompt_of,
    seed_of,
)
from entropix_mlx.lab.evaluation.records import parse_record, read_records
from entropix_mlx.settings import Settings
from entropix_mlx.summary import forward_tokens
from tests.lab.test_tasks import of

SHIPPED = "smollm2-135m-instruct"
STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


def test_arms_are_all_combinations_of_samplers_and_temperatures():
    samplers = ("temperature", "greedy", "entropix:reference")
    arms = {
        arm.name: arm.settings for arm in arms_of(samplers, (0.7, 2.0), Settings(profile=SHIPPED))
    }
    assert {name: (each.temperature, each.profile) for name, each in arms.items()} == {
        "temperature T=0.7": (0.7, SHIPPED),
        "temperature T=2": (2.0, SHIPPED),
        "greedy": (None, SHIPPED),  # it takes no temperature
        "entropix:reference T=0.7": (0.7, "reference"),
        "entropix:reference T=2": (2.0, "reference"),
    }
    for mistake in ("entropix:", "entropix:nowhere"):
        with pytest.raises(EntropixError):
            arms_of((mistake,), (None,), Settings())


def test_an_arm_with_a_name():
    base = Settings(max_tokens=7)
    arm = named_arm("cold: branch.max_branches=0; branch.max_temperature=0.05; top_k=5", base)
    changes = {"branch": {"max_branches": 0, "max_temperature": 0.05}}
    assert arm.name == "cold"
    assert arm.settings == Settings(max_tokens=7, changes=changes, top_k=5)
    assert named_arm('x: sampler="greedy"; profile="reference"', base).settings.sampler == "greedy"
    assert named_arm("plain:", base).settings == base
    for text, names in (
        ("greedy", "NAME"),
        ("a: nonsense=1", "nonsense"),
        ("a: top_k=", "top_k"),
        ("a: branch.widht=1", "width"),
        ('a: sampler="greedy"; temperature=1', "temperature"),
        ('a: sampler="no_such"', "no_such"),
    ):
        with pytest.raises(EntropixError, match=names):
            named_arm(text, base)


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
        "eval", "--model", str(folder), "--task", "arithmetic", "--limit", "20", "--sampler",
        "greedy", "--arm", "hot: sampler='temperature'", "--form", "plain", "--examples", "1",
        "--max-tokens", "6", "--output", str(output), *more,
    ]  # fmt: skip


def keys(path):
    return [(one.question.id, one.question.arm, one.seed) for one in read_records(path)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_model, byte_tokenizer):
    """A folder with a model and the answers of a run."""
    from entropix_mlx.conversion import convert

    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny").mkdir()
    convert.save(tiny_model, byte_tokenizer, folder / "tiny")
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


def test_tables_from_the_file_alone(whole, tmp_path, capsys):
    arguments = ["eval", "--read", str(whole / "whole.jsonl"), "--confidence", "--markdown"]
    assert cli.main(arguments) == 0
    markdown = capsys.readouterr().out
    assert "| arm | questions |" in markdown
    assert "| hot − greedy |" in markdown
    assert "mean_logprob" in markdown
    assert cli.main(["eval", "--read", str(tmp_path / "absent")]) == 2
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


def parsed(*arguments):
    found = vars(cli.build_parser().parse_args(["eval", *arguments]))
    del found["subcommands"]
    return found


def test_a_study_is_a_command_line(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'about = "For readers."\ntask = ["arithmetic", "facts"]\nlimit = 30\nconfidence = true\n'
        'vote = [3]\nseeds = 3\ncontrasts = ["cold vote of 3 - greedy"]\n'
        '[arms]\ngreedy = \'sampler="greedy"\'\ncold = "branch.max_branches=0"\n'
    )
    assert parsed("--study", str(study), "--limit", "5") == (
        parsed(
            *("--task", "arithmetic", "--task", "facts", "--limit", "5", "--confidence"),
            *("--vote", "3", "--seeds", "3", "--arm", 'greedy: sampler="greedy"'),
            *("--arm", "cold: branch.max_branches=0", "--contrast", "cold vote of 3", "greedy"),
        )
    ) | {"study": None}


@pytest.mark.parametrize("text", ["limt = 3", 'limit = "many"', 'contrasts = ["a b"]', "[["])
def test_mistakes_in_a_study(tmp_path, capsys, text):
    study = tmp_path / "study.toml"
    study.write_text(text)
    with pytest.raises(SystemExit):
        parsed("--study", str(study))
    assert "eval" in capsys.readouterr().err


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_the_studies_can_be_run(study, capsys):
    """All arms and contrasts fit; only the model is missing."""
    assert cli.main(["eval", "--study", str(study), "--limit", "2", "--model", "no/such"]) == 2
    assert "no/such" in capsys.readouterr().err
    assert study.with_suffix(".md").exists(), "its table"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--vote", "3", "--seeds", "2"], "--seeds 3"),
        (["--best-of", "2"], "--seeds 2"),
        (["--contrast", "greedy", "greedyy"], "greedy"),
        (["--vote", "2", "--seeds", "2", "--contrast", "greedy vote of 3", "greedy"], "vote of 2"),
        (["--arm", "greedy: temperature=0.5"], "name"),
        (["--json", "--markdown"], "--json"),
        (["--read", "a", "--task", "facts"], "--read"),
        (["--resume"], "--resume"),
    ],
)
def test_mistakes_are_reported_before_the_model_is_loaded(options, names, capsys):
    run = ["eval", "--model", "no/such", "--limit", "2", "--sampler", "greedy"]
    assert cli.main([*run, *options]) == 2
    assert names in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "arms"),
    [
        (["--arm", "two: answers=2"], ["two", "greedy"]),
        (["--sampler", "min_p", "--seeds", "2", "--vote", "2"], ["min_p", "greedy"]),
        (["--arm", "two: answers=2", "--arm", 'plain: sampler="greedy"'], ["two", "plain"]),
        (["--sampler", "min_p"], ["min_p"]),
    ],
)
def test_what_is_chosen_among_several_answers_is_compared_with_greedy(
    options, arms, tmp_path, tiny_folder
):
    file = tmp_path / "answers.jsonl"
    run = ["eval", "--model", str(tiny_folder), "--limit", "1", "--task", "facts"]
    assert cli.main([*run, "--max-tokens", "2", "--output", str(file), *options]) == 0
    found = [record.question.arm for record in read_records(file)]
    assert set(found) == set(arms)


def test_an_arm_with_several_answers_costs_all_of_them(tiny_model, byte_tokenizer):
    several = named_arm(
        "several: answers=3; answers.selection='vote'; answers.posterior=1.0",
        Settings(max_tokens=4),
    )
    assert several.settings.answers == 3
    assert several.settings.changes == {"answers": {"selection": "vote", "posterior": 1.0}}
    planned = plan(of("arithmetic", limit=2), [several], "tiny")
    for task, line in answers(tiny_model, byte_tokenizer, planned):
        record = parse_record(line)
        drawn = line["answers"]["answers"]
        assert len(drawn) == 3
        assert task.settings.answers == 3
        cost = sum(one["forward_tokens"] for one in drawn)
        assert record.graded.committed + record.graded.discarded == cost >= 3


def test_answers_are_read_again_only_where_asked(tiny_folder, tmp_path, capsys):
    run = ["eval", "--model", str(tiny_folder), "--sampler", "greedy", "--limit", "4"]
    for name, option in (("plain", []), ("again", ["--rauq"])):
        path = tmp_path / f"{name}.jsonl"
        assert (
            cli.main([*run, "--max-tokens", "6", "--confidence", "--output", str(path), *option])
            == 0
        )
        assert ("rauq" in capsys.readouterr().out) == bool(option)
        layers = [len(each.tokens.previous_attention) for each in read_records(path)]
        assert all(layers) == bool(option)
