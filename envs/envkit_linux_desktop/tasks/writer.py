"""Word processor families: LibreOffice Writer on docx files."""

from dataclasses import replace

from envkit_linux_desktop.tasks import documents, words
from envkit_linux_desktop.tasks.checks import Text
from envkit_linux_desktop.tasks.clues import expect, then_log, told
from envkit_linux_desktop.tasks.documents import Document, Pages
from envkit_linux_desktop.tasks.scenario import WRITER, Draft, families
from envkit_linux_desktop.tasks.words import quoted


def _add(draft: Draft, model: Pages) -> str:
    """Add a document, open it and return its path."""
    path = draft.add(draft.path("docx"), documents.docx(model))
    draft.open(*WRITER, path)
    return path


def _article(draft: Draft, *counts: int) -> tuple[str, Pages]:
    """Add a document of one-sentence paragraphs."""
    model = documents.pages(*draft.some(words.SENTENCES, draft.at(*(counts or (3, 5, 7, 9)))))
    return _add(draft, model), model


def _expect(draft: Draft, path: str, pages: Pages, *looks: str) -> None:
    """Add the clutter, and expect these pages with the named looks."""
    expect(draft, Document(path=path, pages=pages, looks=looks))


def _with(model: Pages, at: int, *texts: documents.Paragraph, over: int = 1) -> Pages:
    """Return the document with some paragraphs replaced."""
    rows = model.paragraphs
    return replace(model, paragraphs=(*rows[:at], *texts, *rows[at + over :]))


def _sentence(draft: Draft, model: Pages) -> tuple[str, str]:
    """Return a sentence that the document lacks, and the phrase for it."""
    there = [text.text for text in model.paragraphs]
    rest = [sentence for sentence in words.SENTENCES if sentence not in there]
    sentence = draft.one(rest)
    return sentence, told(draft, "sentence", sentence, rest)


def append_paragraph(draft: Draft) -> None:
    """Add a paragraph at the end."""
    path, model = _article(draft)
    sentence, said = _sentence(draft, model)
    count = len(model.paragraphs)
    _expect(draft, path, _with(model, count, documents.paragraph(sentence), over=0))
    draft.say(
        f"Add {said} as a new last paragraph to {path}, and save it as docx.",
        f"{path} should end with one more paragraph: {said}. Add it and save.",
        f"At the end of {path}, start a new paragraph and write {said}. Keep the docx format.",
    )


def insert_paragraph(draft: Draft) -> None:
    """Insert a paragraph between others."""
    path, model = _article(draft)
    sentence, said = _sentence(draft, model)
    at = draft.rng.randrange(1, len(model.paragraphs))
    _expect(draft, path, _with(model, at, documents.paragraph(sentence), over=0))
    draft.say(
        f"In {path}, insert {said} as a paragraph of its own directly before "
        f"{quoted(model.paragraphs[at].text)}. Save it.",
        f"Put {said} into {path} as a new paragraph, right above "
        f"{quoted(model.paragraphs[at].text)}, and save.",
    )


def delete_paragraph(draft: Draft) -> None:
    """Delete paragraphs."""
    path, model = _article(draft)
    texts = [text.text for text in model.paragraphs]
    gone = draft.some(texts, draft.at(1, 1, 2, 3))
    said = [*map(quoted, gone[:-1]), told(draft, "sentence", gone[-1], texts)]
    _expect(draft, path, documents.pages(*(text for text in texts if text not in gone)))
    draft.say(
        f"Delete {words.listed(said)} from {path}, and save the document.",
        f"Remove {words.listed(said)} from {path}. Everything else stays. Save it as docx.",
        f"{path} is better without {words.listed(said)}. Take that out and save.",
    )


def replace_name(draft: Draft) -> None:
    """Replace a name everywhere."""
    old, new, *others = words.full_names(draft.rng, 9)
    frames = draft.some(
        [
            "{} opened the meeting.", "The budget was presented by {}.", "{} asked for more time.",
            "Questions should go to {} by Monday.", "{} will write the report.",
            "The keys are with {} until then.", "{} thanked all guests.", "Lunch was paid by {}.",
        ],
        draft.at(3, 4, 6, 8),
    )  # fmt: skip
    places = draft.some(list(range(len(frames))), draft.at(1, 2, 3, 4))
    texts = [frame.format(old if n in places else others[0]) for n, frame in enumerate(frames)]
    path = _add(draft, documents.pages(*texts))
    said = told(draft, "name", new, others)
    _expect(draft, path, documents.pages(*(text.replace(old, new) for text in texts)))
    draft.say(
        f'Replace the name "{old}" by {said} throughout {path}, and save.',
        f'In {path}, it must be {said} instead of "{old}", wherever that name occurs. Save it.',
        f'Change every "{old}" in {path} to {said}. Keep the docx format.',
    )


def set_headings(draft: Draft) -> None:
    """Give titles a heading style."""
    count = draft.at(1, 2, 3, 4)
    titles = draft.some(words.TITLES, count)
    body = draft.some(words.SENTENCES, 2 * count)
    texts = [t for n in range(count) for t in (titles[n], body[2 * n], body[2 * n + 1])]
    path = _add(draft, documents.pages(*texts))
    style = draft.one(("Heading 1", "Heading 2"))
    chosen = draft.some(titles, draft.at(1, 1, 2, 2))
    said = [*map(quoted, chosen[:-1]), told(draft, "title", chosen[-1], words.TITLES)]
    final = Pages(
        paragraphs=tuple(
            documents.paragraph(text, style=style if text in chosen else "Normal") for text in texts
        )
    )
    _expect(draft, path, final, "style")
    draft.say(
        f'Apply the paragraph style "{style}" to {words.listed(said)} in {path}, and to nothing '
        "else. Save it.",
        f"In {path}, turn {words.listed(said)} into {style}. All other paragraphs keep their "
        "style. Save.",
        f'Format {words.listed(said)} in {path} with the style "{style}", and save as docx.',
    )


def _mark_words(draft: Draft, look: str, name: str) -> None:
    """Ask for words in one look."""
    path, model = _article(draft)
    texts = list(model.paragraphs)
    said: list[str] = []
    for at in draft.some(list(range(len(texts))), draft.at(1, 2, 2, 3)):
        word = texts[at].text.rstrip(".").split()[-1]
        texts[at] = documents.with_looks(texts[at], word, **{look: True})
        said.append(f'the last word, "{word}", of "{texts[at].text}"')
    _expect(draft, path, Pages(paragraphs=tuple(texts)), "bold", "italic", "underline")
    draft.say(
        f"In {path}, make {words.listed(said)} {name}. Leave all other text as it is, and save.",
        f"Make {words.listed(said)} {name} in {path}, without the full stop. Save the document.",
        f"Only this text in {path} should be {name}: {words.listed(said)}. Save as docx.",
    )
    then_log(draft)


def bold_words(draft: Draft) -> None:
    """Make words bold."""
    _mark_words(draft, "bold", "bold")


def italic_words(draft: Draft) -> None:
    """Make words italic."""
    _mark_words(draft, "italic", "italic")


def underline_words(draft: Draft) -> None:
    """Underline words."""
    _mark_words(draft, "underline", "underlined")


def align_paragraphs(draft: Draft) -> None:
    """Center or right-align paragraphs."""
    path, model = _article(draft)
    texts = list(model.paragraphs)
    said: list[str] = []
    align = draft.one(("center", "right"))
    for at in (chosen := draft.some(list(range(len(texts))), draft.at(1, 1, 2, 2))):
        phrase = quoted(texts[at].text)
        if at == chosen[-1]:
            phrase = told(draft, "sentence", texts[at].text, [text.text for text in texts])
        texts[at] = replace(texts[at], align=align)
        said.append(phrase)
    final = Pages(paragraphs=tuple(texts))
    _expect(draft, path, final, "align")
    verb = {"center": "Center", "right": "Right-align"}[align]
    draft.say(
        f"{verb} {words.listed(said)} in {path}, and save. The other paragraphs stay on the left.",
        f"In {path}, {verb.lower()} {words.listed(said)}. Save it in docx format.",
    )


def resize_text(draft: Draft) -> None:
    """Set the font size of a paragraph."""
    path, model = _article(draft)
    texts = list(model.paragraphs)
    at, size = draft.rng.randrange(len(texts)), draft.one([16, 18, 20, 24, 28])
    said = told(draft, "sentence", texts[at].text, [text.text for text in texts])
    texts[at] = documents.paragraph(texts[at].text, size=size)
    _expect(draft, path, Pages(paragraphs=tuple(texts)), "size")
    draft.say(
        f"Set {said} in {path} in {size} points. Change no other text, and save.",
        f"In {path}, the font size of {said} should be {size} pt. Save the document.",
    )


def insert_table(draft: Draft) -> None:
    """Insert a table with given cells."""
    path, model = _article(draft, 2, 3, 4, 5)
    count = draft.at(1, 2, 2, 3)
    cells = [str(draft.rng.randint(100, 9999)) for _ in range(2 * count)]
    table = tuple((cells[2 * n], cells[2 * n + 1]) for n in range(count))
    said = [f"{left} and {right}" for left, right in table]
    if draft.level == 4:
        last = told(draft, "number", cells[-1], [str(n) for n in range(100, 9999, 37)])
        said[-1] = f"{cells[-2]} and {last}"
    _expect(draft, path, replace(model, tables=(table,)))
    rows = "1 row" if count == 1 else f"{count} rows"
    entries = ", then ".join(said)
    draft.say(
        f"At the end of {path}, insert a table with 2 columns and {rows}: {entries}. Save it.",
        f"Add a table with {rows} of 2 cells below the text of {path}. Fill it row by row "
        f"with {entries}. Save the document.",
    )


def turn_page(draft: Draft) -> None:
    """Set the page in landscape format and add a sentence."""
    path, model = _article(draft)
    sentence, said = _sentence(draft, model)
    final = _with(model, len(model.paragraphs), documents.paragraph(sentence), over=0)
    final = replace(final, landscape=True)
    _expect(draft, path, final, "landscape")
    draft.say(
        f"Turn the page of {path} to landscape, and add {said} as the last paragraph. Save it.",
        f"{path} should be printed in landscape format. Set that, append {said} as a paragraph, "
        "and save.",
    )


def page_header(draft: Draft) -> None:
    """Write a page header or footer."""
    path, model = _article(draft)
    place = draft.one(("header", "footer"))
    title = f"{draft.one(words.TITLES)} {draft.rng.randint(2020, 2029)}"
    others = [f"{other} {draft.rng.randint(2020, 2029)}" for other in words.TITLES]
    said = told(draft, "page title", title, others)
    final = replace(model, **{place: title})
    _expect(draft, path, final, "header", "footer")
    draft.say(
        f"Give the pages of {path} a {place} that reads {said}. Save it as docx.",
        f"In {path}, turn on the page {place} and write {said} into it. Save the document.",
    )


def swap_paragraphs(draft: Draft) -> None:
    """Move a paragraph to the start or the end."""
    path, model = _article(draft)
    texts = [text.text for text in model.paragraphs]
    place = draft.one(("first", "last"))
    moved = draft.one(texts[1:-1])
    said = told(draft, "sentence", moved, texts)
    rest = [text for text in texts if text != moved]
    final = [moved, *rest] if place == "first" else [*rest, moved]
    _expect(draft, path, documents.pages(*final))
    draft.say(
        f"In {path}, move {said} so that it becomes the {place} paragraph. Save it.",
        f"{said} should be the {place} paragraph of {path}. Move it there, and save as docx.",
    )


def save_as_text(draft: Draft) -> None:
    """Save a document as plain text, with one more paragraph."""
    path, model = _article(draft)
    texts = [text.text for text in model.paragraphs]
    new = draft.path("txt")
    sentence, said = _sentence(draft, model)
    expect(draft, Text(path=new, text="\n".join([sentence, *texts])))
    draft.say(
        f"Write {said} as a new first paragraph into the text of {path} and save the result as "
        f"plain text (.txt) under {new}.",
        f"Save {path} as the plain text file {new}, with {said} added as the first paragraph.",
    )


FAMILIES = families(
    "writer",
    append_paragraph,
    insert_paragraph,
    delete_paragraph,
    replace_name,
    set_headings,
    bold_words,
    italic_words,
    underline_words,
    align_paragraphs,
    resize_text,
    insert_table,
    turn_page,
    page_header,
    swap_paragraphs,
    save_as_text,
)
