"""Make the small Japanese font that ropewalk ships for its plots.

The font is a subset of Noto Sans CJK JP (SIL Open Font License 1.1, no Reserved Font Name). Two things are changed:

* Only the characters that plots need are kept (see `wanted_characters`). Hinting and the OpenType layout tables go.
* The outlines are converted from cubic (CFF) to quadratic (TrueType). Matplotlib draws PNG, SVG and Type 3 PDF from
  CFF outlines without trouble, but with ``pdf.fonttype: 42`` it embeds them in a way that PDF readers complain about
  ("Mismatch between font type and embedded font file"). TrueType outlines work everywhere.

The family is named "Noto Sans CJK JP Subset", so that it never shadows, or is shadowed by, a complete Noto font that is
installed on the same computer.

Needs fontTools. On Debian and Ubuntu the source font is in the package ``fonts-noto-cjk``. Usage::

    python tools/make_font.py
"""

import argparse
import sys
from pathlib import Path

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.cu2quPen import Cu2QuPen
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.subset import Options, Subsetter
from fontTools.ttLib import TTFont

SOURCE = Path("/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc")
TARGET = Path(__file__).resolve().parents[1] / "src" / "ropewalk" / "fonts" / "NotoSansCJKjp-subset-Regular.ttf"
SOURCE_FAMILY = "Noto Sans CJK JP"
FAMILY = "Noto Sans CJK JP Subset"
POSTSCRIPT_NAME = "NotoSansCJKjpSubset-Regular"

# Unicode blocks of which everything that the source font has is kept; both ends are included.
BLOCKS = (
    (0x0020, 0x007E),  # ASCII
    (0x00A0, 0x00FF),  # Latin-1: the signs for times, degrees, squared and so on
    (0x0370, 0x03FF),  # Greek
    (0x2000, 0x206F),  # general punctuation: dashes, quotation marks, ellipsis, non-breaking hyphen
    (0x2070, 0x209F),  # superscripts and subscripts
    (0x20A0, 0x20CF),  # currency signs
    (0x2100, 0x218F),  # letter-like symbols and number forms
    (0x2190, 0x21FF),  # arrows
    (0x2200, 0x22FF),  # mathematical operators: minus, root, infinity and so on
    (0x2460, 0x2473),  # circled numbers
    (0x3000, 0x303F),  # CJK punctuation
    (0x3040, 0x30FF),  # hiragana and katakana
    (0x31F0, 0x31FF),  # small katakana
    (0xFF00, 0xFFEF),  # fullwidth and halfwidth forms
)
# JIS X 0208 rows: 1-8 hold symbols, letters and kana, 16-47 the level 1 kanji, 48-84 the level 2 kanji.
SYMBOL_ROWS = range(1, 9)
KANJI_ROWS = {1: range(16, 48), 2: range(48, 85)}
# Kanji outside level 1 that are kept all the same. Level 2 as a whole would more than double the size of the font.
JOYO_KANJI = "丼傲刹哺喩嗅嘲彙恣惧慄憬拉摯曖楷毀璧瘍箋籠緻羞訃諧貪踪辣錮鬱塡剝頰𠮟"
EXTRA_KANJI = (
    "珈琲齧嚙咬閾冪乖俯瞰麒檸檬躊躇蛛薔薇絨毯齟齬揶揄椒蝙蝠蝸蟷螂蜥蜴鸚鴉羆駱駝驢貘貂獺鯱鼬鷗啼囀囁呟呻吼咆哮啜躓蹲攫拗捩撥擽縺"
    "嵌籤琥珀翡玻瓔珞煌眩魘頤頸臍踵踝翅篩梳黎朧靄霰雹靂暈翳滲瀑濤瀾坩堝鋏鑿箒炬燵筐笊甕壺竈饅饂飩羹團旁褄邂逅逍遙彷徨徘徊"
    "蹉跌憔悴恍惚慟哭慚愧慇懃懺拮捏敲衍斟杞桎梏沽洒繹炯瑕疵癇癪皺矜矮祟箴縷羈絆聳舐艱蒂苹茉莉苺菫菠薐蒟蒻蘊蝟蠢螢蜃衒袂襞"
    "覿訛訝詭誂謔諫謳譴贅貶跋扈邁鄙酩酊釉飄髑髏鬘魍魎黴黠龜愕戌梵楔癸瞑祚蟄蠍"
)
# Without these characters a plot of ropewalk would show an empty box.
REQUIRED = "\N{MINUS SIGN}\N{MULTIPLICATION SIGN}θπ√·≤≥≈∞→↑↓…—“”°²³犬猫人噛齧珈琲距離減衰曲線"


def jis_characters(rows: range) -> set[int]:
    """Returns the code points in some rows of JIS X 0208.

    Args:
        rows: Row numbers, 1 to 94.
    """
    found: set[int] = set()
    for row in rows:
        for cell in range(1, 95):
            try:
                found.add(ord(bytes((0xA0 + row, 0xA0 + cell)).decode("euc_jp")))
            except UnicodeDecodeError:  # The standard leaves this cell empty.
                continue
    return found


def wanted_characters(level: int) -> set[int]:
    """Returns the code points to keep, whether or not the source font has them.

    Args:
        level: 1 for the level 1 kanji of JIS X 0208 and the extra ones, 2 for both levels.
    """
    wanted = {code for first, last in BLOCKS for code in range(first, last + 1)}
    wanted |= {ord(character) for character in REQUIRED}
    wanted |= {ord(character) for character in JOYO_KANJI + EXTRA_KANJI}
    wanted |= jis_characters(SYMBOL_ROWS)
    for kanji_level in range(1, level + 1):
        wanted |= jis_characters(KANJI_ROWS[kanji_level])
    return wanted


def open_face(path: Path, family: str) -> TTFont:
    """Opens one face of a font collection.

    Args:
        path: A collection (.ttc).
        family: Full name of the face that is wanted.

    Raises:
        ValueError: The collection has no such face.
    """
    # Bytes 8 to 12 of a collection hold the number of its faces.
    count = int.from_bytes(path.read_bytes()[8:12], "big")
    for number in range(count):
        font = TTFont(path, fontNumber=number, recalcTimestamp=False)
        if font["name"].getDebugName(4) == family:
            return font
    raise ValueError(f"{path} has no face named {family!r}")


def subset(font: TTFont, characters: set[int]) -> None:
    """Cuts a font down, in place, to some characters and no layout features."""
    options = Options(hinting=False, layout_features=[], notdef_outline=True, name_IDs=["*"])
    options.drop_tables += ["BASE", "GDEF", "GPOS", "GSUB", "VORG", "vhea", "vmtx"]
    subsetter = Subsetter(options)
    subsetter.populate(unicodes=characters)
    subsetter.subset(font)


def to_truetype(font: TTFont, max_error: float) -> None:
    """Replaces the cubic outlines of a font, in place, by quadratic ones.

    Args:
        font: A font with a "CFF " table.
        max_error: How far, in font units, the new outline may stray from the old one.
    """
    glyph_set = font.getGlyphSet()
    glyphs = {}
    for name in font.getGlyphOrder():
        pen = TTGlyphPen(None)
        # TrueType contours run the other way round than those of CFF.
        glyph_set[name].draw(Cu2QuPen(pen, max_error, reverse_direction=True))
        glyphs[name] = pen.glyph()

    del font["CFF "]
    font.sfntVersion = "\0\1\0\0"
    builder = FontBuilder(font=font)
    builder.isTTF = True
    builder.setupGlyf(glyphs)
    builder.setupMaxp()
    builder.setupPost(
        keepGlyphNames=False,
        underlinePosition=font["post"].underlinePosition,
        underlineThickness=font["post"].underlineThickness,
    )
    # The left side bearings have to agree with the new outlines.
    builder.setupHorizontalMetrics(
        {name: (advance, getattr(glyphs[name], "xMin", 0)) for name, (advance, _) in font["hmtx"].metrics.items()}
    )


def rename(font: TTFont) -> None:
    """Gives a font, in place, the name of the subset; the copyright and licence entries stay."""
    version = font["name"].getDebugName(5).split(";")[0]
    new_names = {
        1: FAMILY,
        3: f"{version};{POSTSCRIPT_NAME}",
        4: FAMILY,
        5: f"{version}; subset for ropewalk with TrueType outlines",
        6: POSTSCRIPT_NAME,
    }
    for record in font["name"].names:
        if record.nameID in new_names:
            record.string = new_names[record.nameID]


def make_font(source: Path, target: Path, level: int, max_error: float) -> None:
    """Makes the font and prints what it holds.

    Args:
        source: The Noto Sans CJK collection.
        target: The TrueType file to write.
        level: JIS X 0208 kanji level, 1 or 2.
        max_error: See `to_truetype`.

    Raises:
        ValueError: The source font lacks a character that ropewalk's plots need.
    """
    font = open_face(source, SOURCE_FAMILY)
    characters = wanted_characters(level)
    missing = sorted(set(REQUIRED) - {chr(code) for code in font.getBestCmap()})
    if missing:
        raise ValueError(f"{source} lacks {''.join(missing)}")

    subset(font, characters)
    to_truetype(font, max_error)
    rename(font)
    target.parent.mkdir(parents=True, exist_ok=True)
    font.save(target)
    glyphs, kept = len(font.getGlyphOrder()), len(font.getBestCmap())
    print(f"{target}: {glyphs} glyphs for {kept} characters, {target.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    """Reads the command line and makes the font."""
    parser = argparse.ArgumentParser(description="Make the Japanese font that ropewalk ships for its plots.")
    parser.add_argument("--source", type=Path, default=SOURCE, help="Noto Sans CJK collection (default: %(default)s)")
    parser.add_argument("--target", type=Path, default=TARGET, help="file to write (default: the package's own font)")
    parser.add_argument("--level", type=int, choices=(1, 2), default=1, help="JIS kanji level (default: %(default)s)")
    parser.add_argument(
        "--max-error", type=float, default=1.0, help="outline error in 1/1000 em (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        make_font(arguments.source, arguments.target, arguments.level, arguments.max_error)
    except (OSError, ValueError) as error:
        sys.exit(f"make_font: {error}")


if __name__ == "__main__":
    main()
