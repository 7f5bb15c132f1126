"""Questions, arms, records and results of an evaluation; a run that is killed and resumed."""

import json
import math
import random
import re
import subprocess
import sys
import time

import pytest
from scipy import stats

from entropix_mlx import cli
from entropix_mlx.errors import ProfileError, PromptError, SettingsError
from entropix_mlx.lab.evaluation import arithmetic, facts, open_answers, tasks
from entropix_mlx.lab.evaluation.arms import Axes, arms_of, asked, seed_of
from entropix_mlx.lab.evaluation.questions import FIT, REPORT, Wanted
from entropix_mlx.lab.evaluation.records import forward_tokens, parse_record, read_records
from entropix_mlx.lab.evaluation.report import Report
from entropix_mlx.lab.evaluation.results import summarize
from entropix_mlx.profiles.profile import Profile
from entropix_mlx.settings import Settings
from entropix_mlx.traces.trace import read_trace


def of(task, split=None, **wanted):
    return tasks.questions_of(task, Wanted(**wanted), split)


@pytest.mark.parametrize("task", ["arithmetic", "facts"])
def test_halves_are_disjoint(task):
    fit, report = of(task, FIT, limit=600), of(task, REPORT, limit=600)
    assert not {q.id for q in fit} & {q.id for q in report}
    assert not {(q.rung, q.subject) for q in fit} & {(q.rung, q.subject) for q in report}
    assert {q.split for q in fit} == {FIT}
    assert {q.split for q in report} == {REPORT}


def test_no_reported_question_is_a_worked_example():
    report = of("arithmetic", limit=300) + of("facts")
    shown = {text for question in report for text, _ in question.examples}
    assert not shown & {question.text for question in report}


def test_worked_examples_are_drawn_anew_and_never_about_the_question():
    questions = of("arithmetic", limit=60, examples=3)
    assert all(len(set(question.examples)) == 3 for question in questions)
    assert len({question.examples for question in questions}) > 55


def test_questions_depend_on_the_seed_alone_and_a_higher_limit_adds_to_them():
    assert of("arithmetic", limit=40) == of("arithmetic", limit=80)[:40]
    assert of("arithmetic", limit=40) != of("arithmetic", limit=40, seed=1)
    assert of("facts") == of("facts")
    ids = [q.id for q in of("arithmetic", limit=3000)]
    assert len(set(ids)) == 3000  # also where a rung has fewer questions than are asked for


def test_every_rung_knows_its_answers():
    for name, (operands, solve, _) in arithmetic.RUNGS.items():
        assert solve(operands(random.Random(name))) >= 0
    (question,) = of("arithmetic", limit=1, rungs=("add1",), examples=0)
    one, other = map(int, question.subject.split(","))
    assert question.answers == (str(one + other),)


@pytest.mark.parametrize("rung", ["count", "after", "plus1", "round", "tens", "add1", "mul1"])
def test_a_question_states_what_its_answer_is_computed_from(rung):
    for question in of("arithmetic", limit=30, rungs=(rung,)):
        numbers = [int(number) for number in re.findall(r"\d+", question.text)]
        right = {"mul1": math.prod, "count": lambda n: n[2] + 1, "after": lambda n: n[0] + 1}
        assert question.answers == (str(right.get(rung, sum)(numbers)),)


def test_there_are_many_facts():
    assert sum(map(len, facts.kinds().values())) >= 150
    assert len(of("capitals", "all")) > 140


def test_questions_from_files(tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text(
        '{"question": "2 + 2?", "answer": 4, "rule": "number"}\n'
        '{"question": "Capital of France?", "answer": ["Paris", "paris"], "id": "f"}\n'
    )
    assert [q.id for q in of(str(own))] == ["own/2", "own/1"] or len(of(str(own))) == 2
    svamp = tmp_path / "svamp.json"
    svamp.write_text(
        '[{"ID": "c-1", "Body": "Ann has 3 apples", "Question": "How many?", "Answer": 3.0,'
        ' "Type": "Addition"}]'
    )
    (problem,) = of(f"svamp={svamp}")
    assert (problem.text, problem.answers) == ("Ann has 3 apples. How many?", ("3",))
    gsm8k = tmp_path / "gsm8k.jsonl"
    gsm8k.write_text('{"question": "How many?", "answer": "2+1 = <<2+1=3>>3\\n#### 3"}\n')
    (problem,) = of(f"gsm8k={gsm8k}")
    assert problem.answers == ("2+1 = 3 #### 3",)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("nonsense", "no task"),
        ("svamp", "svamp=FILE"),
        ("missing.jsonl", "cannot read"),
        ("{}/bad.jsonl", "line 1 is not JSON"),
        ("{}/key.jsonl", "unknown key"),
        ("{}/rule.jsonl", "question 1: no grading rule"),
        ("{}/empty.jsonl", "no questions"),
    ],
)
def test_mistakes_in_tasks(tmp_path, task, says):
    for name, text in {
        "bad": "{",
        "key": '{"question": "a", "answer": "b", "colour": 1}',
        "rule": '{"question": "a", "answer": "b", "rule": "x"}',
        "empty": "",
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    with pytest.raises(PromptError, match=says):
        of(task.format(tmp_path))


def test_arms_are_all_combinations():
    axes = Axes(
        samplers=("temperature", "min_p"),
        profiles=("auto",),
        changes=(("", {}), ("branch.width=3", {"branch": {"width": 3}})),
        temperatures=(0.7, 2.0),
    )
    arms = arms_of(axes, Settings())
    assert len({arm.name for arm in arms}) == len(arms) == 8
    assert arms[3].name == "temperature branch.width=3 T=2"
    assert arms[3].settings.changes == {"branch": {"width": 3}}


def test_a_sampler_without_a_temperature_has_one_arm():
    axes = Axes(samplers=("greedy", "temperature"), profiles=("auto",), temperatures=(0.7, 2.0))
    names = [arm.name for arm in arms_of(axes, Settings())]
    assert names == ["greedy", "temperature T=0.7", "temperature T=2"]


def test_a_sampler_may_have_a_profile_of_its_own():
    axes = Axes(samplers=("min_p", "entropix:reference", "entropix"), profiles=("auto",))
    arms = arms_of(axes, Settings())
    assert [arm.name for arm in arms] == ["min_p", "entropix:reference", "entropix"]
    assert [arm.settings.profile for arm in arms] == ["auto", "reference", "auto"]
    assert [arm.settings.sampler for arm in arms] == ["min_p", "entropix", "entropix"]
    with pytest.raises(ProfileError, match="behind its colon"):
        arms_of(Axes(samplers=("entropix:",), profiles=("auto",)), Settings())
    with pytest.raises(ProfileError, match="nowhere"):
        arms_of(Axes(samplers=("entropix:nowhere",), profiles=("auto",)), Settings())


def test_arms_share_random_numbers_and_questions_do_not():
    one, other = of("arithmetic", limit=2)
    assert seed_of(one, 0) == seed_of(one, 0) != seed_of(one, 1)
    assert seed_of(one, 0) != seed_of(other, 0)


def test_worked_examples_are_earlier_turns_or_plain_text():
    (question,) = of("capitals", limit=1, examples=1)
    chat = asked(question, "chat", 1, Settings())
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "user"]
    plain = asked(question, "plain", 1, Settings()).prompt
    assert plain.startswith("Question: ")
    assert plain.endswith(f"\n\nQuestion: {question.text}\nAnswer:")


def line(question, arm, right, committed=2, discarded=0, rung="r", logprob=-0.1):
    return {
        "question": {
            "id": question, "task": "t", "rung": rung, "split": "report", "rule": "number",
            "answers": ["1"], "arm": arm, "seed_number": 0, "form": "chat",
        },
        "graded": {"right": right, "committed": committed, "discarded": discarded},
        "text": "1", "usage": {"prompt_tokens": 5, "completion_tokens": committed},
        "sampler": arm, "model": "m",
        "tokens": {
            "logprob": [logprob], "entropy": [-logprob], "varentropy": [0.5], "margin": [0.5],
            "attention_entropy": [1.0], "first": 0, "branches": [],
        },
    }  # fmt: skip


def test_accuracy_cost_and_contrasts_are_paired():
    lines = [
        *(line(f"q{i}", "one", i < 6, 2) for i in range(10)),
        *(line(f"q{i}", "two", i in (0, 1, 9), 3, 5) for i in range(10)),
    ]
    results = summarize([parse_record(each) for each in lines])
    one, two = results.accuracies[0], results.accuracies[1]
    assert (one.right, one.n, one.tokens_per_right_answer) == (6, 10, 20 / 6)
    assert (two.right, two.tokens_per_right_answer) == (3, 80 / 3)
    (contrast,) = results.contrasts
    assert (contrast.first, contrast.second) == ("two", "one")
    assert (contrast.wins, contrast.losses, contrast.questions) == (1, 4, 10)
    assert contrast.difference == pytest.approx(-0.3)
    assert contrast.p_value == contrast.adjusted == pytest.approx(2 * 6 / 32)
    assert contrast.interval.low < -0.3 < contrast.interval.high


def test_a_report_tells_how_well_scores_separate():
    lines = [line(f"q{i}", "one", i % 2 == 0, logprob=-0.1 - 0.01 * i - (i % 2)) for i in range(40)]
    report = Report.of([parse_record(each) for each in lines], Profile.load())
    by_score = {each.score: each for each in report.certainties}
    assert by_score["mean_logprob"].pooled.value == 1.0
    assert by_score["max_entropy"].accuracy_at[0.5] == 1.0
    assert by_score["combined"].pooled.value > 0.9
    assert by_score["first_margin"].pooled.value == 0.5
    assert report.to_dict()["questions"]["report"] == sorted(f"q{i}" for i in range(40))
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.fixture
def folder(tiny_folder):
    return tiny_folder


def command(folder, output, *more):
    return [
        "eval", "--model", str(folder), "--task", "arithmetic", "--limit", "20", "--sampler",
        "greedy", "--sampler", "temperature", "--form", "plain", "--examples", "1",
        "--max-tokens", "6", "--output", str(output), *more,
    ]  # fmt: skip


def keys(path):
    return [
        (record.question.id, record.question.arm, record.text, record.seed)
        for record in read_records(path)
    ]


def test_a_run_goes_on_after_being_killed_in_the_middle_of_a_line(folder, tmp_path, capsys):
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    assert cli.main(command(folder, whole, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    cut.write_bytes(whole.read_bytes()[:-300])
    for end in (0, 7000):
        cut.write_bytes(cut.read_bytes()[: end or None])
        assert cli.main(command(folder, cut, "--json", "--resume")) == 0
        assert sorted(k[:2] for k in keys(cut)) == sorted(k[:2] for k in keys(whole))
        again = json.loads(capsys.readouterr().out)
        assert again["questions"] == report["questions"]
    assert len(keys(whole)) == 40
    by_question = {}
    for record in read_records(whole):
        by_question.setdefault(record.question.id, set()).add(record.seed)
    assert all(len(seeds) == 1 for seeds in by_question.values())  # the arms share it


def test_a_process_that_is_killed_loses_and_repeats_nothing(folder, tmp_path):
    output = tmp_path / "answers.jsonl"
    code = "import sys; from entropix_mlx import cli; sys.exit(cli.main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command(folder, output)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not (output.exists() and output.stat().st_size > 3000):
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = output.read_bytes().count(b"\n")
    assert cli.main(command(folder, output, "--resume")) == 0
    found = [key[:2] for key in keys(output)]
    assert len(found) == len(set(found)) == 40 >= before > 0


def test_another_run_is_not_resumed(folder, tmp_path, capsys):
    output = tmp_path / "answers.jsonl"
    cli.main(command(folder, output, "--limit", "2"))
    assert cli.main(command(folder, output)) == 2
    assert "--resume" in capsys.readouterr().err
    assert cli.main(command(folder, output, "--resume", "--seed", "5")) == 2
    assert "resume with the same" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_answered(
    folder, tmp_path, capsys
):
    output = tmp_path / "answers.jsonl"
    for page in (tmp_path, tmp_path / "absent" / "page.html"):
        assert cli.main(command(folder, output, "--page", str(page))) == 2
        assert "cannot write" in capsys.readouterr().err
    assert not output.exists()
    output.write_text("{}\n")
    assert cli.main(["eval", "--read", str(output), "--page", str(output)]) == 2
    assert "write to another file" in capsys.readouterr().err
    assert output.read_text() == "{}\n"
    assert cli.main(["eval", "--read", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.endswith("absent: No such file or directory\n")


def test_tables_and_page_from_the_file_alone(folder, tmp_path, capsys):
    output, page = tmp_path / "answers.jsonl", tmp_path / "page.html"
    cli.main(command(folder, output, "--limit", "10"))
    capsys.readouterr()
    arguments = ["eval", "--read", str(output), "--confidence", "--page", str(page)]
    assert cli.main([*arguments, "--markdown"]) == 0
    markdown = capsys.readouterr().out
    assert "| arm | questions |" in markdown
    assert "mean_logprob" in markdown
    assert "</html>" in page.read_text()


def test_forward_tokens_count_what_was_thrown_away(tiny_model, byte_tokenizer):
    from entropix_mlx import stream_generate

    always = {"thresholds": {"branch_max_entropy": 99.0, "branch_min_varentropy": -1.0,
                             "branch_max_margin": 2.0, "low_entropy": -1.0,
                             "think_max_varentropy": -1.0}}  # fmt: skip
    steps = list(
        stream_generate(
            tiny_model, byte_tokenizer, [1, 2, 3], max_tokens=12, seed=0, changes=always
        )
    )
    forks = [step.fork for step in steps if step.fork]
    assert forks
    committed, discarded = forward_tokens(steps)
    assert committed == len(steps)
    rolled = sum(len(branch.tokens) for fork in forks for branch in fork.branches)
    kept = sum(step.origin == "branch" for step in steps)
    beside = sum(fork.lookahead_tokens for fork in forks)
    assert discarded == rolled - kept + beside + sum(step.rolled_back for step in steps)


def test_results_are_those_of_the_records_alone(folder, tmp_path, capsys):
    """Recompute the accuracy and the sign test from the lines, by other code."""
    output = tmp_path / "answers.jsonl"
    assert cli.main(command(folder, output, "--json")) == 0
    report = json.loads(capsys.readouterr().out)
    grades = {}
    for text in output.read_text().splitlines():
        record = json.loads(text)
        first = record["text"].strip().split("\n")[0]
        digits = "".join(c if c.isdigit() else " " for c in first).split()
        if "=" not in first and "," not in first and "." not in first and "-" not in first:
            assert record["graded"]["right"] == (digits[:1] == record["question"]["answers"])
        grades.setdefault(record["question"]["arm"], {})[record["id"]] = record["graded"]["right"]
    for row in report["accuracies"]:
        if row["rung"] == "all":
            assert row["right"] == sum(grades[row["arm"]].values())
    first, second = (grades[report["contrasts"][0][name]] for name in ("first", "second"))
    assert report["contrasts"][0]["wins"] == sum(first[q] > second[q] for q in first)


def test_open_answers_are_not_graded_but_looked_at(folder, tmp_path, capsys):
    output = tmp_path / "answers.jsonl"
    run = ["eval", "--model", str(folder), "--task", "open", "--limit", "3", "--seeds", "2",
           "--sampler", "temperature", "--max-tokens", "12", "--output", str(output)]  # fmt: skip
    assert cli.main([*run, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accuracies"] == []
    (row,) = report["open_answers"]
    assert (row["n"], row["loops"]) == (6, 0.0)
    surprise = [-p for record in read_records(output) for p in record.tokens.logprob]
    assert row["surprise"] == pytest.approx(sum(surprise) / len(surprise) / math.log(2))
    assert row["distance"] is None
    human = tmp_path / "human.jsonl"
    (tmp_path / "human.txt").write_text("Ships sail at dawn.")
    read = ["read", str(tmp_path / "human.txt"), "--model", str(folder), "-o", str(human)]
    assert cli.main(read) == 0
    capsys.readouterr()
    again = ["eval", "--read", str(output), "--human", str(human), "--json"]
    assert cli.main(again) == 0
    (row,) = json.loads(capsys.readouterr().out)["open_answers"]
    theirs = [-step.logprob for step in read_trace(human).steps]
    expected = stats.wasserstein_distance(surprise, theirs) / math.log(2)
    assert row["distance"] == pytest.approx(expected)
    assert cli.main([*again, "--human", str(output)]) == 2
    assert "trace" in capsys.readouterr().err


def test_variety():
    words = ["the", "cat", "sat", "on", "the", "mat"]
    assert open_answers.bleu(words, [words]) == pytest.approx(1.0)
    assert open_answers.bleu(words, [["a", "dog", "ran", "under", "one", "tree"]]) < 0.2
    assert open_answers.loops(["x", *("a b c d " * 3).split()])
    assert not open_answers.loops(words)


def test_auroc_from_the_lines_alone():
    lines = [line(f"q{i}", "one", i % 3 == 0, logprob=-0.1 * ((i * 7) % 11)) for i in range(60)]
    report = Report.of([parse_record(each) for each in lines], Profile.load())
    scores = [sum(each["tokens"]["logprob"]) for each in lines]
    right = [s for s, each in zip(scores, lines, strict=True) if each["graded"]["right"]]
    wrong = [s for s, each in zip(scores, lines, strict=True) if not each["graded"]["right"]]
    u = stats.mannwhitneyu(right, wrong).statistic
    found = next(each for each in report.certainties if each.score == "mean_logprob")
    assert found.pooled.value == pytest.approx(u / len(right) / len(wrong))


@pytest.mark.parametrize("count", [-1, 99_999])
def test_examples_are_not_endless(count):
    with pytest.raises(SettingsError, match="examples must be between 0 and"):
        Wanted(examples=count)
