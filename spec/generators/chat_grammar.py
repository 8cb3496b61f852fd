"""Random templates of the language that chat templates are written in, for gen_chat_reference.py."""
import random
import re

TEXTS = ["''", "'a'", "'Élan vital'", "' x y '", "'a-b-c'", "'%s'", "'ß\\n'", "\"it's\"", "'12'", "'4.5'"]
INTEGERS = ["0", "1", "2", "3", "7", "-1"]
FLOATS = ["1.5", "2.0", "0.25"]
NAMES = ["text", "lines", "empty", "flag", "half", "nowhere"]
TEXT_FILTERS = ["upper", "lower", "title", "capitalize", "trim", "string", "length", "reverse", "list", "first",
                "last", "tojson", "replace('a', 'b')", "replace('a', 'b', 1)", "indent(2)", "indent(1, true)",
                "truncate(5)", "truncate(6, true, '.', 0)", "int", "float", "default('d')", "default('d', true)",
                "center(9)", "wordcount", "trim('a')", "e", "safe"]
LIST_FILTERS = ["length", "first", "last", "list", "join('-')", "join", "reverse | list", "tojson", "tojson(indent=1)",
                "sort", "sort(reverse=true)", "unique | list", "min", "max", "sum", "batch(2) | list",
                "slice(2) | list", "batch(2, 'z') | list", "map('string') | list", "map('upper') | join(',')",
                "select('number') | list", "reject('string') | list", "select | list", "string", "map('length') | list",
                "select('defined') | first"]
MAP_LIST_FILTERS = ["map(attribute='name') | list", "map(attribute='age') | sum", "selectattr('tags') | list | length",
                    "rejectattr('age', 'gt', 26) | map(attribute='name') | join", "sort(attribute='age') | first",
                    "groupby('age') | list | length", "map(attribute='tags') | map('length') | list",
                    "selectattr('age', 'equalto', 30) | map(attribute='name') | list", "join('/', attribute='name')",
                    "max(attribute='name')", "unique(attribute='age') | list | tojson"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split('-')", "split('a', 1)", "rsplit('-', 1)", "title()",
           "startswith('a')", "endswith(('c', 'y '))", "replace('a', '')", "find('a')", "rfind('a')", "count('a')",
           "splitlines()", "removeprefix('a')", "removesuffix('c')", "partition('-')", "isdigit()", "lstrip('a ')",
           "rstrip()", "capitalize()", "format(1)", "join(['x', 'y'])", "zfill(4)", "swapcase()", "islower()"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence",
         "iterable", "true", "false", "in [1, 'a']", "eq 1", "sameas none", "not none", "not string", "lower", "odd"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]


class Grammar:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = list(NAMES)

    def pick(self, options):
        return self.random.choice(options)

    def chance(self, p):
        return self.random.random() < p

    def text(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(TEXTS + ["text", "lines", "empty", "messages[0].role", "users[0].name", "words[1]"])
        return self.pick([
            lambda: "%s ~ %s" % (self.text(depth - 1), self.expression(depth - 1)),
            lambda: "(%s).%s" % (self.text(depth - 1), self.pick(METHODS)),
            lambda: "(%s) | %s" % (self.text(depth - 1), self.pick(TEXT_FILTERS)),
            lambda: "%s | %s" % (self.pick(TEXTS), self.pick(TEXT_FILTERS)),
            lambda: "(%s)[%s]" % (self.text(depth - 1), self.slice()),
            lambda: "%s + %s" % (self.text(depth - 1), self.text(depth - 1)),
            lambda: "(%s) * %s" % (self.text(depth - 1), self.pick(INTEGERS)),
        ])()

    def slice(self):
        parts = [self.pick(["", "0", "1", "2", "-1", "-3", "9"]) for _ in range(self.pick([1, 2, 2, 3]))]
        if len(parts) == 1:
            return parts[0] or "0"
        if len(parts) == 3 and parts[2] == "0":
            parts[2] = "-2"
        return ":".join(parts)

    def number(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(INTEGERS + FLOATS + ["half", "users[1].age", "numbers[2]", "words | length"])
        return self.pick([
            lambda: "%s %s %s" % (self.number(depth - 1), self.pick(BINARY[:7]), self.number(depth - 1)),
            lambda: "(%s) %s (%s)" % (self.number(depth - 1), self.pick(BINARY[:7]), self.number(depth - 1)),
            lambda: "(%s) | %s" % (self.number(depth - 1), self.pick(["abs", "int", "float", "round", "round(1)",
                                                                       "string", "round(0, 'ceil')"])),
            lambda: "-%s" % self.number(depth - 1),
            lambda: "(%s) | length" % self.list(depth - 1),
        ])()

    def list(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick(["numbers", "words", "[]", "[1, 2]", "['b', 'A']", "(1, 'x')", "range(4)", "map",
                              "users[0].tags", "messages[3].content"])
        return self.pick([
            lambda: "[%s]" % ", ".join(self.expression(depth - 1) for _ in range(self.pick([0, 1, 2, 3]))),
            lambda: "(%s) | %s" % (self.list(depth - 1), self.pick(LIST_FILTERS)),
            lambda: "users | %s" % self.pick(MAP_LIST_FILTERS),
            lambda: "%s[%s]" % (self.pick(["numbers", "words", "[1, 2, 'z']", "range(6)"]), self.slice()),
            lambda: "{%s}" % ", ".join("%s: %s" % (self.pick(["'k'", "'l'", "1", "none"]), self.expression(depth - 1))
                                       for _ in range(self.pick([0, 1, 2]))),
            lambda: "(map | %s)" % self.pick(["dictsort", "items | list", "length", "tojson", "list"]),
            lambda: "%s + %s" % (self.list(depth - 1), self.list(depth - 1)),
        ])()

    def truth(self, depth):
        return self.pick([
            lambda: "%s is %s" % (self.pick(NAMES + ["messages", "map", "numbers[0]", "map.b"]), self.pick(TESTS)),
            lambda: "(%s) is %s" % (self.expression(depth - 1), self.pick(TESTS)),
            lambda: "%s %s %s" % (self.number(depth - 1), self.pick(BINARY[8:14]), self.number(depth - 1)),
            lambda: "not %s" % self.expression(depth - 1),
            lambda: "%s in %s" % (self.expression(0), self.list(depth - 1)),
            lambda: "(%s) %s (%s)" % (self.expression(depth - 1), self.pick(["and", "or"]),
                                      self.expression(depth - 1)),
        ])()

    def expression(self, depth):
        if depth <= 0:
            return self.pick([lambda: self.text(0), lambda: self.number(0), lambda: self.pick(self.names + ["none"]),
                              lambda: self.list(0)])()
        return self.pick([
            lambda: self.text(depth), lambda: self.number(depth), lambda: self.list(depth),
            lambda: self.truth(depth),
            lambda: "%s if %s else %s" % (self.expression(depth - 1), self.truth(depth - 1),
                                          self.expression(depth - 1)),
            lambda: "%s %s (%s)" % (self.expression(depth - 1), self.pick(BINARY), self.expression(depth - 1)),
        ])()

    def blank(self):
        return self.pick(["", "", " ", "\n", "\n  ", "x"])

    def tag(self, words):
        return "{%" + self.pick(["", "", "-", "+"]) + " " + words + " " + self.pick(["", "", "-", "+"]) + "%}"

    def printed(self, depth):
        return "{{" + self.pick(["", "", "-"]) + " " + self.expression(depth) + " " + self.pick(["", "", "-"]) + "}}"

    def statement(self, depth):
        name = self.pick(["v", "w"])
        body = lambda: self.body(depth - 1)
        return self.pick([
            lambda: self.tag("if " + self.truth(2)) + body() + self.tag("elif " + self.truth(1)) + body()
            + self.tag("else") + body() + self.tag("endif"),
            lambda: self.tag("for %s in %s" % (name, self.list(1))) + "{{ loop.index }}" + body() + "{{ %s }}" % name
            + self.tag("else") + body() + self.tag("endfor"),
            lambda: self.tag("for %s in %s if %s is %s" % (name, self.list(1), name, self.pick(TESTS)))
            + body() + "{{ loop.last }}" + self.tag("endfor"),
            lambda: self.tag("for m in messages") + "{{ m.role }}" + body() + self.tag("endfor"),
            lambda: self.tag("set %s = %s" % (name, self.expression(2))) + "{{ %s }}" % name,
            lambda: self.tag("set %s" % name) + body() + self.tag("endset") + "[{{ %s }}]" % name,
            lambda: self.tag("set ns = namespace(a=%s)" % self.expression(1)) + self.tag("for i in range(3)")
            + self.tag("set ns.a = [ns.a, i]") + self.tag("endfor") + "{{ ns.a }}",
            lambda: self.tag("macro f(a, b=%s)" % self.expression(1)) + "({{ a }}" + body() + "{{ b }})"
            + self.tag("endmacro") + "{{ f(%s) }}" % self.expression(1),
            lambda: self.tag("macro f(a)") + "<{{ caller(a) }}>" + self.tag("endmacro")
            + self.tag("call(c) f(%s)" % self.expression(1)) + body() + "{{ c }}" + self.tag("endcall"),
            lambda: self.tag("with %s = %s" % (name, self.expression(1))) + body() + "{{ %s }}" % name
            + self.tag("endwith"),
            lambda: self.tag("filter %s" % self.pick(TEXT_FILTERS)) + body() + self.tag("endfilter"),
            lambda: "{# %s #}" % self.pick(["c", "{{ x }}"]),
            lambda: self.tag("raw") + "{{ x }} " + self.tag("endraw"),
            lambda: self.tag("generation") + body() + self.tag("endgeneration"),
        ])()

    def body(self, depth):
        parts = []
        for _ in range(self.pick([1, 1, 2, 3])):
            parts.append(self.blank())
            parts.append(self.statement(depth) if depth > 0 and self.chance(0.6) else self.printed(2))
        return "".join(parts) + self.blank()


# Where accel raises and Jinja goes on: complex numbers, integers of many digits, slices of constants
# that have none, joined texts that are marked as HTML. Jinja refuses the '+' of a raw block.
LEFT_OUT = re.compile(r"\*\*(?! \(?[0123]\)?\b)|-[^*]*\*\* |(int|float|length|wordcount)\)\[|(safe|e)\)\.join"
                      r"|raw \+%|\+ raw")


def templates(count, seed):
    """Yields templates that are not too long; half of them are one expression."""
    grammar = Grammar(seed)
    made = 0
    while made < count:
        template = "{{ %s }}" % grammar.expression(3) if made % 2 == 0 else grammar.body(2)
        if len(template) < 600 and not LEFT_OUT.search(template):
            made += 1
            yield template
