"""The model before training: sizes, tokenizer and the folder that the embedded engine loads.

The tokenizer keeps such a small model fast. Sentences that never change (lines of system prompts,
questions, feedback, fixed parts of an action) are one token each, so the desktop's system prompt is
32 tokens instead of 1,500 characters. Everything else is byte-level BPE with one token per digit
and capital letter, so any text still encodes.
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

import envkit
from envkit_transformers.dependencies import quiet_transformers
from envkit_transformers.vlm_folder import (
    CONTEXT_LENGTH,
    VISION_TOKENS,
    Architecture,
    VisionSize,
    build_config,
    build_model,
    chat_template,
    padded_vocabulary,
    save_folder,
)
from envkit_visual.cells import MOVES
from envkit_visual.scenes.scene import COLOR_NAMES, SHAPE_NAMES
from envkit_visual.world import LOOK

FAMILIES: Final = ("move_window", "resize_window")
CODES: Final = {"canary-v0": "codes of 1 to 8 capital letters and digits, 3 turns"}
SHORT_CODES: Final = {"canary-v0": "codes of 1, 2 and 4 characters, stopped early"}
DESKTOP: Final = {
    "computer-use-v0": "level=1, action=canonical, families move_window and resize_window",
}
"""Environment id -> the part a model was trained on, for the folder's config.json."""
WORLDS: Final = tuple(
    f"visual/{name}-v0"
    for name in ("lights", "tint", "lake", "fold", "heat", "pie", "clock", "count")
)
"""Worlds whose prompts are tokens of the model."""
LEARNED: Final = {f"visual/{name}-v0": "level=1" for name in ("lights", "fold", "clock")}
"""Those of the worlds that the model solves, with the part that it was trained on."""
VISION: Final = VisionSize(depth=3, hidden=160, heads=5, max_pixels=384 * 256)
_TEXT: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
}
_ROPE_THETA: Final = 16.0
"""Base of the rotary embedding.

Image columns rotate a head's lowest frequencies. With the usual 10,000 and 32 dimensions they turn
by less than 0.04 over twelve columns, so the text model could hardly distinguish left from right.
"""
_INITIAL_SPREAD: Final = 0.06
"""Standard deviation of the first weights.

The usual 0.02 suits widths in the thousands; at width 128 it needs four to six times the steps.
"""
_VOCABULARY: Final = 448
_FIXED: Final = (
    "You read codes off pictures. Reply with the code only.",
    "Which code of length ",
    " does the picture show?",
    "Right. ",
    "Wrong. ",
    '{"action": "drag", "x": ',
    ', "y": ',
    ', "to": [',
    "]}",
    '{"action": "terminate", "status": "success"}',
    "Task: Move the window",
    "into the",
    "corner of the screen, at most",
    "pixels from both edges and fully visible. Then end the task.",
    "Task: Resize the window",
    "pixels wide and",
    "high, each give or take",
    "Then end the task.",
    "Done.",
)


_WORLD_SENTENCES: Final = (
    "<action>",
    "</action>",
    "Answer the question about the picture.",
    "Moves left: ",
    "Pressed. ",
    "Changed. ",
    "Each hue may be off by 24 degrees. ",
    LOOK,
    "What is the value of cell ",
    "How many ",
    "large ",
    "small ",
    " are in the picture?",
    "objects",
    "crosses",
    *(f"{color} " for color in COLOR_NAMES),
    *(f"{shape}s" for shape in SHAPE_NAMES),
    *(f"{move}{end}" for move in MOVES for end in (", ", "</action>")),
)
_DESCRIPTIONS: Final = (
    "Describe the picture.",
    "* on, . off\n",
    "# hole, P person, F flag\n",
    "values of columns 1, 2, ...\n",
    " %",
    *(
        f"The {one} part is folded onto the {other} one along the line between the {lines} "
        for one, other, lines in (
            ("left", "right", "columns"),
            ("right", "left", "columns"),
            ("upper", "lower", "rows"),
            ("lower", "upper", "rows"),
        )
    ),
    ".\nThen ",
    " are punched.",
)


_MORE_WORLDS: Final = ("visual/pegs-v0", "visual/sudoku-v0")
_MORE_SENTENCES: Final = (
    "Jumped. ",
    "Placed. ",
    *(f"{symbol}</action>" for symbol in ("circle", "square", "triangle", "star")),
)


def make_policy(seed: int) -> tuple[Any, Any]:
    """Return a random float32 model, determined by the seed, and its tokenizer."""
    tokenizer = _tokenizer()
    config = build_config(
        Architecture.QWEN3_VL, tokenizer, text=_TEXT, rope_theta=_ROPE_THETA, vision=VISION
    )
    for part in (config.text_config, config.vision_config):
        part.initializer_range = _INITIAL_SPREAD
    return build_model(config, seed=seed), tokenizer


def grow(folder: Path, seed: int) -> tuple[Any, Any]:
    """Return the float32 model of a folder, ready to learn the worlds, and its tokenizer.

    It has two more text layers and one more layer that sees, whose outputs are zero before
    training, and one token for each sentence of the worlds.
    """
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(str(folder))
    prompts, more = map(_prompt_lines, (WORLDS, _MORE_WORLDS))
    lines = dict.fromkeys(
        itertools.chain(_WORLD_SENTENCES, *prompts, _DESCRIPTIONS, *more, _MORE_SENTENCES)
    )
    tokenizer.add_tokens([AddedToken(line, normalized=False, special=False) for line in lines])
    old: Any = AutoModelForImageTextToText.from_pretrained(str(folder), dtype=torch.float32)
    config = copy.deepcopy(old.config)
    config.text_config.num_hidden_layers += 2
    config.vision_config.depth += 1
    config.text_config.vocab_size = padded_vocabulary(tokenizer)
    model = build_model(config, seed=seed)
    weights = model.state_dict()
    for name, value in old.state_dict().items():
        weights[name][: len(value)] = value  # the first rows of the token embeddings
    with torch.no_grad():
        for layer in model.model.language_model.layers[-2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        block = model.model.visual.blocks[-1]
        for part in (block.attn.proj, block.mlp.linear_fc2):
            part.weight.zero_()
            part.bias.zero_()
    return model, tokenizer


def _prompt_lines(names: Sequence[str]) -> list[list[str]]:
    envs: list[Any] = [envkit.make(name).unwrapped for name in names]
    return [env.system_prompt.split("\n") for env in envs]


def save_policy(
    folder: Path,
    model: Any,  # noqa: ANN401  # a transformers model
    tokenizer: Any,  # noqa: ANN401  # a transformers tokenizer
    trained_on: Mapping[str, str],
) -> None:
    """Write the model in bfloat16 without changing the one in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.config.trained_on = dict(trained_on)
    with quiet_transformers():
        save_folder(folder, half, tokenizer, max_pixels=VISION.max_pixels)


def write_run(out: Path, **settings: object) -> None:
    """Record everything that the weights of a run depend on."""
    names = ("torch", "transformers", "tokenizers", "numpy")
    run = {**settings, "versions": {name: version(name) for name in names}}
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def _tokenizer() -> Any:  # noqa: ANN401  # a transformers tokenizer
    lines, goals = _sentences()
    backend: Any = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[A-Z0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    roles = ["system\n", "user\n", "assistant\n"] * 50
    backend.train_from_iterator([*goals, *roles], trainer)
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        additional_special_tokens=["<|im_start|>", *VISION_TOKENS],
    )
    tokenizer.add_tokens([AddedToken(line, normalized=False, special=False) for line in lines])
    tokenizer.chat_template = chat_template()
    tokenizer.model_max_length = CONTEXT_LENGTH
    return tokenizer


def _sentences() -> tuple[list[str], list[str]]:
    """Return the sentences that become single tokens, and those that train the BPE."""
    lines, goals = list[str](_FIXED), list[str]()
    for family in FAMILIES:
        env: Any = envkit.make("computer-use-v0", level=1, families=[family]).unwrapped
        prompt = env.system_prompt.replace(
            f"You have {env.max_turns} replies.", "You have\nreplies."
        )
        # A token that starts with a quote or spaces could be mistaken for part of the template.
        found = [line.lstrip(' "') for line in prompt.split("\n")]
        lines += [line for line in found if len(line) > 6 and line not in lines]
        for seed in range(80):
            env.reset(seed=seed)
            goals.append("Task: " + env.task["goal"])
    return lines, goals
