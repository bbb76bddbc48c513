"""All training rows -> rows.jsonl: {"t": text, "s": [[start,end,label]], "i": [[start,end]] ignored, "k": source}"""

import json, random, re, sys, glob, subprocess, os, unicodedata, keyword, calendar
from pathlib import Path
from faker import Faker

sys.path.insert(0, "/work/main")
sys.path.insert(0, "/work/main/examples/default_tagger")
sys.path.insert(0, "/work/main/examples/european_tagger")
M = Path("/work/.mirror")
R = random.Random(20261129)
out = []


def put(t, s, k, ig=()):
    if t.strip():
        out.append({"t": t, "s": [list(x) for x in s], "i": [list(x) for x in ig], "k": k})


def rd(f):
    return [json.loads(l) for l in open(f, encoding="utf8")]


def S(r):
    return [(s["start"], s["end"], s["label"]) for s in r["spans"]]


DATEWORD = re.compile(r"\d")
ORD = re.compile(r"(?i)\b(first|second|third|fourth|fifth|\w+th|twenty|thirty|nineteen)\b")


def fix_dates(t, s):
    r = []
    for a, b, l in s:
        if l == "DATE_TIME" and not DATEWORD.search(t[a:b]) and not (len(t[a:b].split()) > 2 and ORD.search(t[a:b])):
            continue
        r.append((a, b, l))
    return r


# English
for name, cap in (
    ("gold", 99999),
    ("renamed", 99999),
    ("clauses", 3000),
    ("talk", 5000),
    ("support", 3500),
    ("varied", 48000),
):
    rows = rd(f"en/{name}.jsonl")
    R.shuffle(rows)
    for r in rows[:cap]:
        put(r["text"], fix_dates(r["text"], S(r)), f"en.{name}")
# six languages
DIG = re.compile(r"\S*\d\S*")
for lang in ("de", "es", "fr", "it", "nl", "pt"):
    rows = rd(f"eu/{lang}.jsonl")
    R.shuffle(rows)
    for r in rows[:22000]:
        t = r["text"] if len(r["text"]) < 1500 else None
        if t is None:
            continue
        s = fix_dates(t, S(r))
        # numbers that nobody labelled: the corpora don't say whether they are dates
        ig = (
            [m.span() for m in DIG.finditer(t) if not any(a < m.end() and m.start() < b for a, b, _ in s)]
            if len(s) and any(l in ("PERSON", "LOCATION", "ORGANIZATION") for *_, l in s)
            else []
        )
        put(t, s, f"{lang}.rows", ig)
# other languages of Universal NER: persons, places, organisations only
L = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION"}


def iob2(text):
    for block in text.split("\n\n"):
        ln = block.splitlines()
        t = next((l[9:] for l in ln if l.startswith("# text = ")), "")
        toks = [l.split("\t") for l in ln if l[:1].isdigit()]
        sp = []
        pos = 0
        ins = False
        ok = True
        for f in toks:
            st = t.find(f[1], pos)
            if st < 0:
                ok = False
                break
            pos = st + len(f[1])
            lab = L.get(f[2][2:])
            if lab is None:
                ins = False
            elif ins and f[2][0] == "I":
                sp[-1] = (sp[-1][0], pos, lab)
            else:
                sp.append((st, pos, lab))
                ins = True
        if ok and t:
            yield t, sp


CAP = re.compile(r"(?<=\w )[^\W\d_][\w\'’-]*")
for repo, f, n in (
    ("Danish-DDT", "da_ddt", 3500),
    ("Croatian-SET", "hr_set", 3500),
    ("Slovak-SNK", "sk_snk", 3500),
    ("Swedish-Talbanken", "sv_talbanken", 3000),
    ("Serbian-SET", "sr_set", 1500),
    ("Chinese-GSDSIMP", "zh_gsdsimp", 2000),
):
    txt = subprocess.run(
        ["git", "-C", str(M / f"UniversalNER+UNER_{repo}" / "repo"), "show", f"HEAD:{f}-ud-train.iob2"],
        capture_output=True,
    ).stdout.decode()
    rows = list(iob2(txt))
    R.shuffle(rows)
    for t, s in rows[:n]:
        ig = [m.span() for m in DIG.finditer(t)] + [m.span() for m in CAP.finditer(t) if m[0][0].isupper()]
        put(t, s, "other." + f, [x for x in ig if not any(a < x[1] and x[0] < b for a, b, _ in s)])
# EWT train text, labelled by today's tagger, doubtful tokens ignored
repo = M / "UniversalDependencies+UD_English-EWT" / "repo"
train = [
    l.strip()
    for l in subprocess.run(
        ["git", "-C", str(repo), "show", "HEAD:not-to-release/file-lists/files.train"], capture_output=True
    )
    .stdout.decode()
    .split()
]
texts = []
for f in train:
    p = subprocess.run(["git", "-C", str(repo), "show", f"HEAD:not-to-release/sources/{f}"], capture_output=True)
    texts += [l[9:] for l in p.stdout.decode().splitlines() if l.startswith("# text = ")]
dev = {r["text"] for f in ("uner_ewt_dev", "uner_ewt_test") for r in rd(f"/work/shared/data/ner_open/{f}.jsonl")}
texts = [t for t in dict.fromkeys(texts) if t not in dev]
print("ewt train", len(texts))
from redactory.detectors.settings import TaggerSettings
from redactory.detectors.tagger import TaggerEngine

E = TaggerEngine(TaggerSettings(models=("default",)), "en")


def silver(texts, k, hi=0.85, lo=0.15, only_plain=False):
    for i in range(0, len(texts), 256):
        for t, o in zip(texts[i : i + 256], E.read(texts[i : i + 256])):
            s = [(x.start, x.end, x.label) for x in o.spans if x.score >= hi]
            s2 = fix_dates(t, s)
            ig = [(p.start, p.end) for p in o.non_entity_scores if lo < p.probability < hi]
            ig = [x for x in ig if not any(a < x[1] and x[0] < b for a, b, _ in s)]
            if only_plain and any(
                l in ("PERSON", "STREET_ADDRESS", "EMAIL_ADDRESS", "PHONE_NUMBER", "LOCATION", "ORGANIZATION")
                for *_, l in s2
            ):
                continue
            put(t, s2, k, ig)


silver(texts, "en.ewt")
# code and technical prose: nothing personal
site = Path("/work/main/.venv/lib/python3.11/site-packages")
std = Path(os.__file__).parent
files = [
    p
    for d in (
        "numpy",
        "scipy",
        "pandas",
        "torch/nn",
        "torch/utils",
        "spacy",
        "prefect",
        "pyarrow",
        "sklearn",
        "fastapi",
        "starlette",
        "sqlalchemy",
        "pydantic",
        "rich",
        "click",
        "yaml",
        "jinja2",
        "requests",
        "urllib3",
        "networkx",
        "sympy/core",
        "matplotlib",
    )
    for p in (site / d).rglob("*.py")
] + [p for p in std.glob("*.py")]
js = [p for p in site.rglob("*.js") if p.stat().st_size < 60000][:200]
h = [p for p in site.rglob("*.h")][:600]
cfg = [p for e in ("*.toml", "*.cfg", "*.yaml", "*.yml", "*.css", "*.pyx", "*.pyi") for p in list(site.rglob(e))[:150]]
BAD = re.compile(
    r"@[a-z]|https?:|[Cc]opyright|COPYRIGHT|[Aa]uthor|[Ll]icen[sc]e|©|[Cc]ontribut|[Mm]aintain|\bby [A-Z]|et al|University|Inc\.|[A-Z][a-z]+ [A-Z][a-z]+|\d{5,}|[\u0080-\uffff]"
)
DOC = []
n = 0
R.shuffle(files)
R.shuffle(h)


def code_chunks(p, limit):
    try:
        lines = p.read_text(encoding="utf8").splitlines()
    except Exception:
        return
    good = [i for i in range(len(lines)) if lines[i].strip()]
    for _ in range(limit):
        if len(good) < 10:
            return
        a = R.choice(good)
        k = R.choice((1, 1, 2, 3, 4, 6))
        ch = "\n".join(lines[a : a + k])[:500]
        if R.random() < 0.5:
            ch = ch.strip()
        if ch.strip() and not BAD.search(ch) and len(ch) > 8:
            yield ch


code = []
for p in files[:2200]:
    code += list(code_chunks(p, 5))
for p in js + h[:400] + cfg:
    code += list(code_chunks(p, 4))
R.shuffle(code)
code = list(dict.fromkeys(code))[:9000]
print("code", len(code))
for t in code:
    put(t, [], "neg.code")
# docstrings and markdown of packages as technical prose
PROSE = re.compile(r'"""(.*?)"""', re.S)
prose = []
for p in files[:2500]:
    try:
        t = p.read_text(encoding="utf8")
    except Exception:
        continue
    for m in PROSE.finditer(t):
        for par in m[1].split("\n\n"):
            q = " ".join(par.split())
            if (
                40 < len(q) < 400
                and q[0].isupper()
                and q.endswith(".")
                and not re.search(r"(?i)@[a-z]|https?:|copyright|author|>>>|\[\d+\]|et al", q)
            ):
                prose.append(q)
R.shuffle(prose)
prose = list(dict.fromkeys(prose))[:9000]
print("prose", len(prose))
silver(prose, "neg.prose", only_plain=True)
exec(compile(open("templates.py", encoding="utf8").read(), "templates.py", "exec"))
with open("rows.jsonl", "w", encoding="utf8") as f:
    R.shuffle(out)
    for r in out:
        f.write(json.dumps(r, ensure_ascii=False) + "\n")
from collections import Counter

print(len(out), Counter(r["k"] for r in out))
print(Counter(x[2] for r in out for x in r["s"]))
