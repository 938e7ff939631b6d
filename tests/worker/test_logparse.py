"""Lines of TensorFlow programs and what they tell."""

import pytest

from submarine_patch.worker.logparse import STEP_MAX, Checkpoint, LogParser, Progress

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
    ("INFO:tensorflow:Saved checkpoint for 53 into /a/ckpt-53-0f (0.001 sec)", Checkpoint(53, "/a/ckpt-53-0f")),
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
def test_one_line(line: str, said: object) -> None:
    found = LogParser().feed(line, 0.0)
    if said == "nan":
        assert isinstance(found, Progress)
        assert found.loss != found.loss
    else:
        assert found == said


def test_no_number_of_a_log_is_too_large_to_be_reported() -> None:
    parser = LogParser()
    for line in (
        "12/999999999999999 - loss: 0.3", f"Epoch {'9' * 30}/9", "Epoch 999999999999999/9", "3/9 - loss: 0.1",
        "loss = 0.1, step = 10", "global_step/sec: 1e-300", "loss = 0.1, step = 11 (" + "9" * 400 + " sec)",
    ):  # fmt: skip
        said = parser.feed(line, 1e300)
        if said is not None:
            assert 0 <= said.step <= STEP_MAX
    assert parser.last == Progress(11, 0.1, None, None)


def test_time_of_a_step_from_the_seconds_said() -> None:
    parser = LogParser()
    parser.feed("loss = 0.9, step = 100", 0.0)
    found = parser.feed("loss = 0.8, step = 200 (5.0 sec)", 99.0)
    assert found == Progress(200, 0.8, None, 0.05)


def test_time_of_a_step_from_the_clock() -> None:
    parser = LogParser()
    parser.feed("step 10: loss: 0.9", 100.0)
    assert parser.feed("step 30: loss: 0.8", 104.0) == Progress(30, 0.8, None, 0.2)


def test_rate_line_and_values_that_stay_known() -> None:
    parser = LogParser()
    assert parser.feed("INFO:tensorflow:global_step/sec: 8", 0.0) is None
    parser.feed("loss = 0.9, step = 100, accuracy = 0.5", 0.0)
    assert parser.feed("INFO:tensorflow:global_step/sec: 8", 1.0) == Progress(100, 0.9, 0.5, 0.125)
    assert parser.feed("loss = 0.7, step = 101 (0.125 sec)", 2.0) == Progress(101, 0.7, 0.5, 0.125)


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
