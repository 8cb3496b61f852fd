"""Writes spec/reference/tokenizers: small tokenizer.json files of each kind, and what Hugging Face's
`tokenizers` and `transformers` make of some texts with them.

    python3 spec/generators/gen_tokenizers_reference.py
    python3 spec/generators/gen_tokenizers_reference.py windows

The second line writes windows.json alone, with the tokenizers that are there.  Needs tokenizers 0.23
and transformers 5.
"""
import json, os, random, sys
from tokenizers import AddedToken, Tokenizer, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "../reference/tokenizers")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# A text of its own: one that somebody edits would change the reference.
with open(os.path.join(HERE, "english.txt"), encoding="utf-8") as f:
    ENGLISH = [line.strip("\n") for line in f]
OTHERS = ["Die Würde des Menschen ist unantastbar.", "Все люди рождаются свободными и равными.",
          "人人生而自由,在尊严和权利上一律平等。", "すべての人間は、生まれながらにして自由である。",
          "모든 인간은 태어날 때부터 자유로우며", "كل الناس يولدون أحرارا", "כל בני האדם נולדו בני חורין",
          "सभी मनुष्यों को गौरव और अधिकारों", "มนุษย์ทั้งหลายเกิดมามีอิสระ", "Tüm insanlar hür, haysiyet"]
TEXTS = OTHERS + ENGLISH[:12] + [
    "", " ", "  two  spaces ", "tabs\tand\nlines\r\n\r\n  end", "don't DON'T we'LL I'ſ it's",
    "a1b22c333d4444 ½ ² Ⅻ ٣",
    "Ça va? déjà vu Å Å ﬁ ㎏ ｆｕｌｌ İstanbul ẞ", "🎉👩‍👩‍👧‍👦🇩🇪 ok", "x\u0301\u0323y q\u0307\u0323",
    "zero\u200bwidth\u00adsoft\ufeff",
    "\u0000\u0001control\u007f\ufffd", "...!?—“quoted”«»$€+<=>^`|~",
    "<unk> [MASK] <s> </s>[SEP]<|end|> <|end|>", "각 각 한글",
    "unaffordableunbelievablyunthinkable",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "x" * 120, "▁meta▁ space ▁", "a \u00a0b\u3000c\u2028d", "word wordless sword word."]
rng = random.Random(7)
POOL = "aeiost ABZ019.,'!-\n\t éüßжйאب中文かな한🎉\u0301\u0327\u200d\u00a0ſ²½"
TEXTS += ["".join(rng.choice(POOL) for _ in range(rng.randint(5, 50))) for _ in range(30)]


def train(t, trainer):
    t.train_from_iterator(ENGLISH + OTHERS * 3, trainer)
    return t


def bert():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    train(t, trainers.WordPieceTrainer(vocab_size=500, show_progress=False, limit_alphabet=150,
                                       special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = decoders.WordPiece()
    return t, {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
               "mask_token": "[MASK]"}


def byte_level(pre, size=420):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    train(t, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<|end|>"],
                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.decoder = decoders.ByteLevel()
    return t


def gpt2():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    return t, {"eos_token": "<|end|>", "pad_token": "<|end|>"}


def llama3():
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    t = byte_level(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False,
        use_regex=False)]))
    t.model.ignore_merges = True
    t.post_processor = processors.TemplateProcessing(single="<|end|> $A", pair="<|end|> $A <|end|>:1 $B:1",
                                                     special_tokens=[("<|end|>", 0)])
    return t, {"bos_token": "<|end|>", "padding_side": "left", "pad_token": "<|end|>"}


def roberta():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.post_processor = processors.RobertaProcessing(("</s>", 420), ("<s>", 421))
    t.add_special_tokens(["</s>", "<s>"])
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("ok", lstrip=True, rstrip=True)])
    return t, {"pad_token": "</s>"}


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                         normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(t, trainers.UnigramTrainer(vocab_size=420, show_progress=False, unk_token="<unk>",
                                     special_tokens=["<pad>", "</s>", "<unk>"]))
    t.decoder = decoders.Metaspace(prepend_scheme="always")
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                     special_tokens=[("</s>", 1)])
    return t, {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}


def fallback():
    """Llama 2's kind: BPE over whole texts with bytes for unknown characters."""
    vocab = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + list("▁abcdefghilmnoprstuvwy.,")
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("e", "r"), ("▁", "a"), ("o", "n"), ("r", "e"),
              ("▁", "w"), ("▁", "s"), ("a", "t"), ("e", "n"), ("o", "r"), ("in", "g"), ("a", "n"), ("▁a", "n"),
              ("▁an", "d"), ("▁", "▁"), ("▁▁", "▁▁")]
    vocab += [a + b for a, b in merges]
    t = Tokenizer(models.BPE({v: i for i, v in enumerate(vocab)}, merges, unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    return t, {"unk_token": "<unk>"}


def pieces():
    """Steps that the others lack."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits(True),
        pre_tokenizers.Split("e", "merged_with_next")])
    train(t, trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=["[UNK]"]))
    t.decoder = decoders.WordPiece(cleanup=False)
    return t, {"unk_token": "[UNK]"}


CHATS = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
              "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
              "{{ '<|im_start|>assistant\n' }}{% endif %}",
    "strict": "{% if messages[0]['role'] == 'system' %}\n  {% set loop_messages = messages[1:] %}\n"
              "  {% set system = messages[0].content | trim %}\n{% else %}\n  {% set loop_messages = messages %}\n"
              "{% endif %}\n{%- for message in loop_messages %}\n    {%- if (message['role'] == 'user') != "
              "(loop.index0 % 2 == 0) %}\n        {{- raise_exception('roles must alternate') }}\n    {%- endif %}\n"
              "    {%- if loop.first and system is defined and system is not none %}\n"
              "        {%- set content = '<<' ~ system ~ '>> ' ~ message.content.strip() %}\n    {%- else %}\n"
              "        {%- set content = message['content'].strip() -%}\n    {%- endif %}\n"
              "    {{ '[' if message.role == 'user' else '(' }}{{ content | upper }}"
              "{{ loop.index }}/{{ loop.length }}\n"
              "    {# a comment #}\n{% endfor %}\nend\n",
    "others": "{%- set ns = namespace(found=false) -%}\n{%- for m in messages if m.role != 'system' -%}\n"
              "{%- if not loop.last %}{{ m.content[:3] }},{% else %}{{ m['content'][-1] }}{% endif -%}\n"
              "{%- if 'a' in m.content %}{% set ns.found = true %}{% endif -%}\n{%- endfor %}\n"
              " {{ ns.found }} {{ [1, 2, 3] | join('-') }} {{ 7 // 2 }} {{ messages | length }} "
              "{{ missing | default('none') }} {{ 'x,y'.split(',')[1] }} {{ {'a': 'b'}.a }} {{ none is none }}",
}
MESSAGES = [[{"role": "user", "content": " hello there "}],
            [{"role": "system", "content": " be kind "}, {"role": "user", "content": "what? "},
             {"role": "assistant", "content": "that"}]]


def record(t, settings):
    t.save(os.path.join(OUT, "tokenizer.json"))
    rows = []
    for text in TEXTS:
        e = t.encode(text)
        at = [0]
        for c in text:
            at.append(at[-1] + len(c.encode()))
        rows.append({"ids": e.ids, "offsets": [[at[a], at[b]] for a, b in e.offsets],
                     "words": [-1 if w is None else w for w in e.word_ids], "decoded": t.decode(e.ids)})
    side = {k: settings[k] for k in settings}
    fast = PreTrainedTokenizerFast(tokenizer_object=t, **side)
    calls = []
    if "pad_token" in settings:
        texts, pairs = TEXTS[10:16], TEXTS[16:22]
        for options in ({"padding": True}, {"padding": True, "truncation": True, "max_length": 9},
                        {"padding": "max_length", "truncation": "longest_first", "max_length": 17, "pair": True},
                        {"truncation": "only_second", "max_length": 80, "pair": True, "padding": True},
                        {"padding": True, "pad_to_multiple_of": 8, "add_special_tokens": False},
                        {"padding": True, "truncation": True, "max_length": 12, "truncation_side": "left"}):
            options = dict(options)
            call = {"options": dict(options)}
            fast.truncation_side = options.pop("truncation_side", "right")
            second = pairs if options.pop("pair", False) else None
            got = fast(texts, second, return_special_tokens_mask=True, return_token_type_ids=True, **options)
            call["result"] = {k: got[k] for k in ("input_ids", "attention_mask", "token_type_ids",
                                                  "special_tokens_mask")}
            calls.append(call)
    return {"rows": rows, "calls": calls, "settings": settings}


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS +
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS +
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def patterns():
    """Which word each byte is of, where only a pattern cuts texts."""
    draw, found = random.Random(1), []
    pool = ("abAB ZsSdtm'''  019.,/!-\n\r\t \u00e9\u00dc\u00df\u0436\u4e2d\u6587\u304b\u02b0\u01c5\uc544"
            "\u0301\u0327\u200d\u00a0\u017f\u00b2\u00bd")
    texts = ["".join(draw.choice(pool) for _ in range(draw.randint(1, 40))) for _ in range(120)]
    for regex, how, invert in ((O200K, "isolated", False), (CLIP, "removed", True)):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), how, invert=invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.train_from_iterator([], trainers.BpeTrainer(
            vocab_size=256, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        t.decoder = decoders.ByteLevel()
        found.append({"config": t.to_str(), "texts": texts, "words": [t.encode(x).word_ids for x in texts]})
    with open(os.path.join(OUT, "patterns.json"), "w", encoding="utf-8") as f:
        json.dump(found, f, separators=(",", ":"))


WINDOWS = [  # options, whether there are second texts
    ({"truncation": True, "max_length": 12, "stride": 3}, False),
    ({"truncation": True, "max_length": 9}, False),
    ({"truncation": True, "max_length": 11, "stride": 6, "padding": True}, False),
    ({"truncation": True, "max_length": 13, "stride": 1, "padding": "max_length", "add_special_tokens": False}, False),
    ({"truncation": "longest_first", "max_length": 14, "stride": 2, "padding": True}, True),
    ({"truncation": "longest_first", "max_length": 32, "stride": 4, "padding": True, "pad_to_multiple_of": 8}, True),
    ({"truncation": "only_first", "max_length": 40, "stride": 2, "padding": True}, True),
    ({"truncation": "only_second", "max_length": 41, "stride": 5, "padding": True, "padding_side": "left"}, True),
    ({"truncation": "longest_first", "max_length": 17, "add_special_tokens": False}, True),
    ({"padding": True}, True),
]


def windows():
    """Rows of what is cut off, with offsets in bytes."""
    texts = [" the quick  brown fox over the lazy dog again", "Ein schöner Tag", "", "  日本語 ok ok don't   ",
             "word wordless   sword so on"]
    others = ["what is it", "déjà vu and more of that", "   a  b   c", "x", "is it?"]
    found = []
    for kind in ("bert", "gpt2", "llama3", "roberta", "unigram"):
        with open(os.path.join(OUT, kind + ".reference.json"), encoding="utf-8") as f:
            settings = json.load(f)["settings"]
        fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(os.path.join(OUT, kind + ".json")),
                                       **settings)
        for number, (options, paired) in enumerate(WINDOWS):
            given = (texts, others) if paired else (texts, None)
            if "only" in str(options.get("truncation")):  # the other text must fit
                given = ([t or "z" * 80 for t in texts], others)[::1 if options["truncation"] == "only_first" else -1]
                given = tuple([t * 3 if side == (options["truncation"] == "only_second") else t for t in g]
                              for side, g in enumerate(given))
            for side in ("right", "left"):
                fast.truncation_side = side
                got = fast(*given, return_overflowing_tokens=True, return_offsets_mapping=True,
                           return_special_tokens_mask=True, return_token_type_ids=True, **options)
                offsets = []
                for row, sample in enumerate(got["overflow_to_sample_mapping"]):
                    at = [[len(g[sample][:i].encode()) for i in range(len(g[sample]) + 1)] for g in given if g]
                    offsets.append([[0, 0] if s is None else [at[s][a], at[s][b]] for (a, b), s in
                                    zip(got["offset_mapping"][row], got.sequence_ids(row))])
                result = {k: got[k] for k in ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask",
                                              "overflow_to_sample_mapping")}
                if kind in ("roberta", "unigram"):  # second texts are of type 0, but of 1 in further rows
                    del result["token_type_ids"]
                found.append({"kind": kind, "side": side, "options": options, "texts": given[0],
                              "seconds": given[1] or False, "result": {**result, "offset_mapping": offsets}})
    with open(os.path.join(OUT, "windows.json"), "w", encoding="utf-8") as f:
        json.dump(found, f, ensure_ascii=False, separators=(",", ":"))


def main():
    if sys.argv[1:] == ["windows"]:
        return windows()
    patterns()
    os.makedirs(OUT, exist_ok=True)
    for make in (bert, gpt2, llama3, roberta, unigram, fallback, pieces):
        t, settings = make()
        reference = record(t, settings)
        os.replace(os.path.join(OUT, "tokenizer.json"), os.path.join(OUT, make.__name__ + ".json"))
        # one line, no blanks: these are read, not looked at
        path = os.path.join(OUT, make.__name__ + ".json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(OUT, make.__name__ + ".reference.json"), "w", encoding="utf-8") as f:
            json.dump(reference, f, separators=(",", ":"))
    fast = PreTrainedTokenizerFast(tokenizer_object=gpt2()[0])
    chats = []
    for name, template in CHATS.items():
        for messages in MESSAGES:
            for prompt in (False, True):
                chats.append({"name": name, "template": template, "messages": messages, "prompt": prompt,
                              "text": fast.apply_chat_template(messages, chat_template=template, tokenize=False,
                                                               add_generation_prompt=prompt)})
    trained = []
    for pattern, frequency, size in (("gpt2", 2, 700), ("llama3", 3, 500), ("gpt2", 0, 2000)):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if pattern == "llama3":
            t.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.train_from_iterator(ENGLISH + OTHERS, trainers.BpeTrainer(
            vocab_size=size, min_frequency=frequency, show_progress=False, special_tokens=["<|end|>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        model = json.loads(t.to_str())["model"]
        trained.append({"pattern": pattern, "min_frequency": frequency, "vocab_size": size,
                        "merges": [" ".join(m) for m in model["merges"]], "size": len(model["vocab"])})
    with open(os.path.join(OUT, "others.json"), "w", encoding="utf-8") as f:
        json.dump({"chats": chats, "trained": trained, "texts": TEXTS, "training": ENGLISH + OTHERS}, f,
            separators=(",", ":"))
    windows()


main()
