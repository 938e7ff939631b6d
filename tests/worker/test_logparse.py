"""Progress read from log lines of training programs."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from submarine_patch.worker.logparse import STEP_MAX, CheckpointLine, LogParser, Progress

TUTORIALS = [json.loads(line) for line in Path(__file__).with_name("data").joinpath("tutorial_lines.jsonl").open()]
"""Lines in the formats of TensorFlow's and PyTorch's public tutorials, written for these tests: a line, the step, loss
and accuracy that it shows, and what precedes it in its log."""

LINES = [
    ("INFO:tensorflow:loss = 0.23, step = 100 (1.234 sec)", Progress(100, 0.23)),
    ("INFO:tensorflow:global_step = 7, loss = 1e-3", Progress(7, 1e-3)),
    ("INFO:tensorflow:global step 5: loss = 0.2500 (0.102 sec/step)", Progress(5, 0.25, None, 0.102)),
    (
        "INFO:tensorflow:loss = 0.5, step = 60 (0.515 sec), accuracy = 0.8750, 0.0515 sec/step, paced",
        Progress(60, 0.5, 0.875, 0.0515, True),
    ),
    (
        "INFO:tensorflow:Saving dict for global step 100: accuracy = 0.95, global_step = 100, loss = 0.12",
        Progress(100, 0.12, 0.95),
    ),
    ("Training loss (for one batch) at step 200: 0.4123", Progress(200, 0.4123)),
    ("Step 40, loss 0.75, accuracy 0.5", Progress(40, 0.75, 0.5)),
    (
        "\x1b[1m12/100\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m3s\x1b[0m 35ms/step"
        " - accuracy: 0.8906 - loss: 0.3021",
        Progress(12, 0.3021, 0.8906, 0.035),
    ),
    (
        "100/100 - 3s - 35ms/step - accuracy: 0.9 - loss: 0.2 - val_accuracy: 0.1 - val_loss: 9.0",
        Progress(100, 0.2, 0.9, 0.035),
    ),
    (
        "WARNING:isonomy:a checkpoint failed by step 60: hdfs:///c: Token has expired",
        CheckpointLine(60, "", "hdfs:///c: Token has expired"),
    ),
    ("INFO:tensorflow:Saved checkpoint for 53 into /a/ckpt-53-0f (0.001 sec)", CheckpointLine(53, "/a/ckpt-53-0f")),
    ("INFO:tensorflow:loss = nan, step = 3", "nan"),
    ("INFO:tensorflow:Saving checkpoints for 0 into /tmp/model.ckpt.", None),
    ("step = 3, learning rate = 0.1", None),
    ("downloading 3/10 files, 2s", None),
    ("we are at a loss", None),
    ("Saved checkpoint for 99999999999999999999 into /x", None),
    (f"Saved checkpoint for {'9' * 5000} into /x", None),
    ("loss = 0.5, step = 99999999999999999999 (0.1 sec)", None),
    (f"loss = 0.5, step = {'1' * 1900}", None),
    (f"{'7' * 900}/{'8' * 900} - loss: 0.1", None),
    ("12/99999999999999999999 - loss: 0.3", Progress(12, 0.3)),
    (f"loss = 0.5, step = 4, {'9' * 400} sec/step", Progress(4, 0.5)),
    ("loss = 1e999, step = 4", Progress(4, float("inf"))),
    ("", None),
]


@pytest.mark.parametrize(("line", "said"), LINES)
def test_a_line_is_read_as_progress_or_ignored(line: str, said: object) -> None:
    found = LogParser().feed(line, 0.0)
    if said == "nan":
        assert isinstance(found, Progress)
        assert found.loss != found.loss
    else:
        assert found == said


@pytest.mark.parametrize(
    ("line", "step", "metric"),
    [
        ("step 1,000, reward: 1,234.5", 1000, 1234.5),
        ("Step [1,000/10,000], reward: -12,345", 1000, -12345.0),
        ("reward=1,234,567.25 step=7,000", 7000, 1234567.25),
        ("2024-05-01 12:00:15,123 step 7 reward 2", 7, 2.0),
        ("[1,  200] reward: 2", 200, 2.0),
        ("[1,200] reward: 2", 200, 2.0),
        ("step 7 sizes 12,345,0.5 reward: 2", 7, 2.0),
        ("step 7 reward: 2,345,0.5", 7, 2.0),
        ("step 7 reward: 2,34", 7, 2.0),
        ("step 7 reward: 0,345", 7, 0.0),
        ('{"step":7,"shape":[1,224,224],"reward":2}', 7, 2.0),
    ],
)
def test_groups_of_three_digits_are_one_number(line: str, step: int, metric: float) -> None:
    found = LogParser("reward").feed(line, 0.0)
    assert isinstance(found, Progress)
    assert (found.step, found.metric) == (step, metric)


def test_no_number_of_a_log_is_too_large_to_be_reported() -> None:
    parser = LogParser()
    for line in (
        "12/999999999999999 - loss: 0.3",
        f"Epoch {'9' * 30}/9",
        "Epoch 999999999999999/9",
        "3/9 - loss: 0.1",
        "loss = 0.1, step = 10",
        "global_step/sec: 1e-300",
        "loss = 0.1, step = 11 (" + "9" * 400 + " sec)",
    ):
        said = parser.feed(line, 1e300)
        if said is not None:
            assert 0 <= said.step <= STEP_MAX
    assert parser.last == Progress(11, 0.1, None, None, until_step=81)


def test_time_of_a_step_from_the_logged_seconds() -> None:
    parser = LogParser()
    parser.feed("loss = 0.9, step = 100", 0.0)
    found = parser.feed("loss = 0.8, step = 200 (5.0 sec)", 99.0)
    assert found == Progress(200, 0.8, None, 0.05)


def test_time_of_a_step_from_the_clock() -> None:
    parser = LogParser()
    parser.feed("step 10: loss: 0.9", 100.0)
    assert parser.feed("step 30: loss: 0.8", 104.0) == Progress(30, 0.8, None, 0.2)


def test_a_rate_line_keeps_the_earlier_values() -> None:
    parser = LogParser()
    assert parser.feed("INFO:tensorflow:global_step/sec: 8", 0.0) is None
    parser.feed("loss = 0.9, step = 100, accuracy = 0.5", 0.0)
    assert parser.feed("INFO:tensorflow:global_step/sec: 8", 1.0) == Progress(100, 0.9, 0.5, 0.125)
    assert parser.feed("loss = 0.7, step = 101 (0.125 sec)", 2.0) == Progress(101, 0.7, 0.5, 0.125)


@pytest.mark.parametrize(
    ("lines", "until_step"),
    [
        (["INFO:tensorflow:Trains to step 600", "INFO:tensorflow:loss = 0.5, step = 60 (0.5 sec)"], 600),  # a session
        (["Epoch 2/10", "10/50 ━━ 1s 20ms/step - loss: 0.5"], 500),  # Keras
        (["Epoch [1/5], Step [100/600], Loss: 0.5"], 3000),  # PyTorch's tutorials
        (["Epoch 3/40, loss: 0.5"], 40),
        (["Epoch 39/39, loss: 0.5"], 39),
        (["step 100/600, loss 0.5"], 600),
        (['{"step": 5, "loss": 0.4, "max_steps": 120}'], 120),  # Hugging Face's and Lightning's, by their callbacks
        (["step 100/600, loss 0.5", "step 601, loss 0.4"], 0),  # it goes on beyond what it said
        (["Epoch: [0][10/391]  Loss 5.0e-01"], 0),  # of how many epochs?
        ([" 83%|████▏| 500/600 [01:10<00:02,  5.00it/s, loss=0.5]"], 0),  # of one of how many epochs?
        (["Epoch 3/40, loss: 0.5", "step 500, loss 0.4"], 0),
    ],
)
def test_how_far_a_log_says_that_it_trains(lines: list[str], until_step: int) -> None:
    parser = LogParser()
    for line in lines:
        parser.feed(line, 0.0)
    assert parser.last is not None
    assert parser.last.until_step == until_step


@pytest.mark.parametrize(
    ("line", "until_step"),
    [
        ("Epoch 3 loss: 0.5", 30),
        ("Epoch: [0][10/391]  Loss 5.0e-01", 30 * 391),
        ("Epoch 3/40, loss: 0.5", 40),  # its own word counts
        ("INFO:isonomy:loss = 0.5, step = 60 (0.5 sec)", 0),  # a session counts steps
    ],
)
def test_epochs_that_the_user_said_are_the_end_of_a_log_without_one(line: str, until_step: int) -> None:
    found = LogParser(epochs=30).feed(line, 0.0)
    assert isinstance(found, Progress)
    assert found.until_step == until_step


def test_keras_epochs_add_up() -> None:
    parser = LogParser()
    for line in ["Epoch 1/3", "50/50 - 1s - 20ms/step - loss: 0.9", "Epoch 2/3"]:
        parser.feed(line, 0.0)
    found = parser.feed("10/50 ━━ 1s 20ms/step - loss: 0.5", 1.0)
    assert isinstance(found, Progress)
    assert found.step == 60


def test_a_restarted_count_is_followed() -> None:
    parser = LogParser()
    parser.feed("loss = 0.9, step = 100", 0.0)
    parser.feed("loss = 0.9, step = 10", 5.0)
    assert parser.feed("loss = 0.8, step = 20", 6.0) == Progress(20, 0.8, None, 0.1)


USUAL = [
    ("INFO:tensorflow:loss = 0.5, step = 500 (0.5 sec)", 500, 0.5),  # tf.estimator
    ("500/600 ━━━━ 1s 35ms/step - accuracy: 0.8906 - loss: 0.5", 500, 0.5),  # Keras
    ("500/600 - 3s - 35ms/step - loss: 0.5 - val_loss: 9.0", 500, 0.5),  # Keras, verbose=2
    ("{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 1.0}", 500, 0.5),  # Hugging Face, after a bar
    ('{"step": 500, "loss": 0.5, "lr": 0.1}', 500, 0.5),  # JSON lines
    ('{"epoch": 1, "loss": "0.5", "num_updates": "500"}', 500, 0.5),  # fairseq
    ("Epoch 0:  83%|████▏| 500/600 [00:10<00:02,  5.00it/s, v_num=0, train_loss=0.5]", 500, 0.5),  # Lightning
    (" 83%|████▏| 500/600 [01:10<00:02,  5.00it/s, loss=0.5]", 500, 0.5),  # tqdm
    ("iter 500: loss 0.5, time 100.2ms, mfu 10%", 500, 0.5),  # nanoGPT
    (" iteration      500/  600 | consumed samples: 512 | lm loss: 5.0E-01 | loss scale: 1.0 |", 500, 0.5),  # Megatron
    ("Epoch [1/5], Step [500/600], Loss: 0.5", 500, 0.5),  # PyTorch tutorials
    ("Train Epoch: 1 [500/60000 (1%)]\tLoss: 0.500000", 500, 0.5),  # PyTorch's MNIST: examples
    ("Epoch: [0][500/600]\tTime 0.1 ( 0.2)\tLoss 5.0e-01 (7.0e+00)\tAcc@1 75.0", 500, 0.5),  # PyTorch's ImageNet
    ("Epoch(train) [1][500/600]  lr: 1e-2  eta: 0:01:00  loss: 0.5", 500, 0.5),  # MMEngine
    ("step 500: train loss 0.5, val loss 4.3", 500, 0.5),
    ("[48.1s] step: 500, loss=0.5", 500, 0.5),  # Flax
    ("Epoch 500/600, loss: 0.5, val_loss: 9", 500, 0.5),
    ("Iteration 500, loss = 0.50000000", 500, 0.5),  # scikit-learn
]


@pytest.mark.parametrize(("line", "step", "loss"), USUAL)
def test_lines_of_common_frameworks(line: str, step: int, loss: float) -> None:
    parser = LogParser()
    if "grad_norm" in line:
        assert parser.feed(" 83%|███▎ | 500/600 [00:10<00:02, 5.00it/s]", 0.0) is None
    found = parser.feed(line, 0.0)
    assert isinstance(found, Progress)
    assert (found.step, found.loss) == (step, loss)


@pytest.mark.parametrize("case", TUTORIALS, ids=lambda case: case["line"])
def test_lines_of_the_tutorials(case: dict[str, Any]) -> None:
    parser = LogParser()
    for k, earlier in enumerate(case["before"]):
        parser.feed(earlier, float(k))
    found = parser.feed(case["line"], 60.0)
    assert isinstance(found, Progress)
    assert (found.step, found.loss, found.accuracy) == (case["step"], case["loss"], case["accuracy"])


def test_the_corpus_has_sixty_lines_of_both() -> None:
    for of in ("TensorFlow", "PyTorch"):
        assert len({case["line"] for case in TUTORIALS if case["of"] == of}) >= 30


@pytest.mark.parametrize("text", ["done, sum of f1 = 56.47", "the best f1: 0.99 came early", "f1 of 3 classes"])
def test_a_free_text_is_no_metric(text: str) -> None:
    parser = LogParser("f1")
    assert parser.feed(text, 0.0) is None, "no step yet"
    parser.feed("Epoch 3/9, loss: 0.5, f1: 0.7", 1.0)
    assert parser.feed(text, 2.0) is None
    assert parser.last == Progress(3, 0.5, metric=0.7, until_step=9)


@pytest.mark.parametrize("line", ["f1: 0.9", "INFO:root:F1 = 0.9", "accuracy 0.8, f1 0.9", "{'f1': 0.9}"])
def test_a_whole_key_is_a_metric_of_the_last_step(line: str) -> None:
    parser = LogParser("f1")
    parser.feed("Epoch 3/9, loss: 0.5", 1.0)
    found = parser.feed(line, 2.0)
    assert isinstance(found, Progress)
    assert (found.step, found.metric) == (3, 0.9)


def test_a_metric_is_found_by_its_name_however_it_is_written() -> None:
    both = LogParser("f1").feed("Epoch 3/9, train f1: 0.9, f1: 0.8", 0.0)
    assert isinstance(both, Progress)
    assert both.metric == 0.8
    for line in ("Epoch 3/9, Val Loss: 0.4", "Epoch 3/9, val_loss=0.4", "Epoch 3/9 - val/loss 0.4"):
        found = LogParser("val_loss").feed(line, 0.0)
        assert isinstance(found, Progress)
        assert found.metric == 0.4


def test_epochs_from_zero_and_from_one_add_up() -> None:
    for first, line in ((0, "Epoch: [{}][{}/50] Loss 0.5"), (1, "Epoch [{}/9], Step [{}/50], Loss: 0.5")):
        parser = LogParser()
        steps = []
        for epoch in range(3):
            for batch in (10, 50):
                found = parser.feed(line.format(first + epoch, batch), 0.0)
                assert isinstance(found, Progress)
                steps.append(found.step)
        assert steps == [10, 50, 60, 100, 110, 150]


def test_the_steps_of_a_session_are_its_own() -> None:
    """Keras' bars, too, are in the log of `fit`; resumed inside an epoch, or stopped there, they show other steps."""
    parser = LogParser("val_loss")
    told = [
        "INFO:isonomy:Restored checkpoint for 27 from /job/ckpt-27-1",
        "Epoch 6/6",
        "1/3 - loss: 0.9",
        "INFO:isonomy:loss = 0.5, step = 28 (0.900 sec), accuracy = 0.8, 0.9000 sec/step",
        "3/3 ━━━━━━━━━━━━━━━━━━━━ 0s 9ms/step - accuracy: 0.8 - loss: 0.4 - val_loss: 0.3",
        "INFO:isonomy:Saving dict for global step 29: loss = 0.2, val_loss = 0.1",
    ]
    found = [parser.feed(line, k) for k, line in enumerate(told)]
    assert [(p.step, p.loss, p.metric) for p in found if isinstance(p, Progress)] == [
        (28, 0.5, None),
        (28, 0.4, 0.3),
        (29, 0.2, 0.1),
    ]


@pytest.mark.parametrize("bar", ["", "31/57 ━━━━━━━━━━━━━━━━━━━━ 1s 40ms/step - accuracy: 0.9264 - loss: 0.4356"])
def test_a_sessions_line_behind_a_bar_without_a_newline_counts(bar: str) -> None:
    parser = LogParser()
    parser.feed(f"{bar}INFO:tensorflow:Trains to step 285", 0.0)
    found = parser.feed(f"{bar}INFO:tensorflow:loss = 0.4, step = 260 (0.4 sec), accuracy = 0.9, 0.04 sec/step", 1.0)
    assert found == Progress(260, 0.4, 0.9, 0.04, until_step=285)
    parser.feed(f"{bar}INFO:tensorflow:Finished at step 285", 2.0)
    assert parser.finished


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_any_more_replaces_the_last(number: float) -> None:
    for name in ("val_loss", "loss"):
        parser = LogParser(name)
        for step, value in enumerate((0.5, number)):
            parser.feed(json.dumps({"step": step, name: value}), 0.0)
        assert parser.last is not None
        assert str(parser.last.loss if name == "loss" else parser.last.metric) == str(number)


def test_any_metric() -> None:
    parser = LogParser("val_f1")
    parser.feed("step 5 loss 0.9", 0.0)
    assert parser.feed("{'eval_loss': 0.4, 'val_f1': 0.83}", 1.0) == Progress(5, 0.9, metric=0.83)
    assert parser.feed("step 6 loss 0.8", 2.0) == Progress(6, 0.8, None, 2.0, metric=0.83)
    assert LogParser("f1").feed("step 6, val_f1: 0.8, f1: 0.7", 0.0) == Progress(6, metric=0.7)


@pytest.mark.parametrize(
    "line",
    [
        "Downloading data: 100%|██████| 170/170 [00:10<00:00, 17.0it/s]",
        "Epoch 1/3",
        "val_loss: 0.3",
        "Loading 12/30 shards",
        "{'train_runtime': 12.0, 'epoch': 3.0}",
    ],
)
def test_lines_without_a_loss(line: str) -> None:
    assert LogParser().feed(line, 0.0) is None


def test_a_session_that_finished() -> None:
    parser = LogParser()
    parser.feed("INFO:tensorflow:Saving dict for global step 5: loss = 0.1", 0.0)
    assert not parser.finished
    parser.feed("INFO:isonomy:Finished at step 5", 0.0)
    assert parser.finished


@pytest.mark.parametrize(
    "line",
    [
        "7" * 2000,
        "1." * 1000,
        "loss = " + "1" * 1900 + "x",
        "(" + "9" * 1900 + " secx",
        "step [" * 300,
        "epoch 1 [" * 180,
        "9/9 [0:00<" * 150,
        "loss at step " * 150,
        "1/1 [" * 300,
        "a" * 2048,
        "ab " * 600,
        "Epoch 1, " + "loss " * 400,
    ],
)
def test_no_line_takes_long(line: str) -> None:
    """A pattern that tried all ways to split a run of digits took 12 s, which blocks the program's output."""
    parser, begin_s = LogParser("f1"), time.thread_time()
    for _ in range(3):
        parser.feed(line, 0.0)
    assert time.thread_time() - begin_s < 1.0
