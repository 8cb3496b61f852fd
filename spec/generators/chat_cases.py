"""Templates for gen_chat_reference.py, a group for each part of the language."""

# Maps have the order here that tables of Lua get: messages that of Transformers, others are sorted.
VARIABLES = {
    "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": " Hello, Élan! "},
        {"role": "assistant", "content": "Straße\n\nab  cd"},
        {"role": "user", "content": [{"type": "text", "text": "look: "}, {"type": "image"}]},
    ],
    "users": [
        {"age": 30, "name": "bob", "tags": ["x", "y"]},
        {"age": 25, "name": "Alice", "tags": ""},
        {"age": 30, "name": "Émile", "tags": ["y"]},
    ],
    "numbers": [3, 1, 2.5, 1, -4],
    "words": ["pear", "Apple", "fig", "apple"],
    "text": "Grüße aus  Köln, naïve café",
    "lines": "one\ntwo\r\nthree\n\n  four",
    "empty": "",
    "flag": True,
    "half": 0.5,
    "map": {"b": 1, "a": {"x": [1, 2]}, "C": "z"},
}
VARIABLES["map"] = dict(sorted(VARIABLES["map"].items()))


def printed(text):
    return ["{{ %s }}" % line.strip() for line in text.strip().splitlines()]


CASES = {
    "numbers": printed("""
        6 / 3
        messages | length / 1
        7 // 2
        -7 // 2
        7 // 2.0
        -7 % 3
        7 % -3
        7.5 % 2
        2 ** 10
        2 ** -1
        2 ** 3 ** 2
        -2 ** 2
        1e3
        1.5e-7
        1e16
        123456789012345680.0
        1_000
        0x1F + 0b101 + 0o17
        .5
        1.0 * 3
        0.1 + 0.2
        3 - 1.0
        1 / 0
        1 % 0
        'a' - 1
        True + True
        -True
        +5
        3.0 == 3
        1 == True
        10 / 4 * 2
        -3 | abs
        (-3) | abs
        - 3.5 | abs
        1 + 2 is odd
        5 | float
        '1.5' | float
        'x' | float
        'x' | float(7)
        'inf' | float
        '42' | int
        ' 42 ' | int
        '42.9' | int
        '0x1f' | int(base=16)
        '0x1f' | int(0, 16)
        '0x1f' | int
        'ff' | int(5, 16)
        '1_000' | int
        -2.7 | int
        none | int
        'abc' | int(9)
        true | int
        [] | int
        2.5 | round
        3.5 | round
        2.675 | round(2)
        42 | round
        42.55 | round(1, 'floor')
        42.51 | round(1, 'ceil')
        1234 | round(-2)
        1234.5 | round(-2)
        2.5 | round(0, 'other')
        1e400
        1 < 2 < 3
        1 < 3 < 2
        3 > 2 >= 2 != 1
        1 < 'a'
        none < 1
        [1, 2] < [1, 3]
        (1, 2) < (1, 2, 0)
        1 in [1.0, 2]
        123 | string ~ 4
        1000000 | filesizeformat
        500 | filesizeformat
        1500 | filesizeformat(true)
        5 is divisibleby 2
        6 is divisibleby(3)
        [1.0, -0.0, 1e-5, 1e22, 12345.678]
    """),
    "texts": printed(r"""
        'éa' | upper
        'élan vital-naïve (ça)' | title
        'élan vital-naïve (ça)'.title()
        "they're bill's".title()
        'straße ŉ ﬁ' | upper
        'ΑΣ ΣΑΣ' | lower
        'ǆ' | capitalize
        'éCOLE Ä' | capitalize
        'aÉb'.swapcase()
        text | length
        text[1]
        text[-4:]
        text[::-1]
        text[2:20:3]
        text[100]
        text[5:2]
        text[::0]
        'abc'[1.0]
        text | reverse
        text | list
        text.find('ß')
        text.find('n', 15)
        text.find('zz')
        text.rfind('a')
        text.index('zz')
        text.count('a')
        'aaaa'.count('aa')
        'abc'.count('')
        text.startswith('Gr')
        text.startswith(('x', 'Gr'))
        text.endswith(('x', 'fé'))
        text.startswith('ü', 2)
        text.startswith(['a'])
        'a-b-c'.replace('-', '+', 1)
        'a-b-c' | replace('-', '+', 1)
        'a-b-c' | replace('-', '+', count=2)
        'abc'.replace('', '-')
        'abc'.replace('', '-', 2)
        12.5 | replace('.', ',')
        'a,b,,c'.split(',')
        'a,b,,c'.split(',', 1)
        '  a  b c '.split()
        '  a  b c '.split(none, 1)
        ' a b c '.rsplit(none, 1)
        'a,b,c'.rsplit(',', 1)
        'a,b,c'.split(sep=',', maxsplit=1)
        'a b'.split('')
        'abc'.split('b').pop()
        lines.splitlines()
        lines.splitlines(true)
        'a\x0bb\u2028c'.splitlines()
        'xxabcxx'.strip('x')
        'xyabc'.lstrip('yx')
        'abc  \n'.rstrip()
        '\u00a0abc\u2003'.strip() ~ '|'
        '  abc ' | trim
        'xxabc' | trim('x')
        5 | trim
        'abc'.strip('')
        'prefix-x'.removeprefix('prefix-')
        'x.txt'.removesuffix('.txt')
        'a=b=c'.partition('=')
        'a=b=c'.rpartition('=')
        'abc'.partition('=')
        ','.join(['a', 'b'])
        ','.join(['a', 1])
        'ab'.center(7, '*')
        'abc'.center(6)
        'ab' | center(5) ~ '|'
        'é'.ljust(3, '.')
        'é'.rjust(3)
        '-42'.zfill(6)
        'a\tb'.expandtabs(4)
        'abc'.isalpha()
        'ab1'.isalnum()
        '12'.isdigit()
        ''.isdigit()
        'AB1'.isupper()
        'É'.isupper()
        'ab'.islower()
        ' \t'.isspace()
        'abc' is lower
        'ABC' is upper
        'a' 'b' "c"
        'a' ~ 1 ~ none ~ true ~ 2.0 ~ nowhere
        'ab' * 3
        3 * 'ab'
        'ab' * -1
        'ab' * 1.5
        'a' + 1
        'b' in 'abc'
        1 in 'abc'
        '' in ''
        'a\nb\tc\\d\'e\"f'
        '\x41\u00e9\U0001F600\101'
        'a\qb'
        '\
x'
        'a' < 'b'
        'Z' < 'a'
        'é' > 'z'
        'abc' | first
        'abc' | last
        '' | first
        'a b' | urlencode
        'one two three' | wordcount
        lines | indent
        lines | indent(2, true)
        lines | indent(2, blank=true)
        lines | indent('> ', first=True)
        'x' | indent(width=3, first=true)
        5 | indent
        'foo bar baz qux' | truncate(9)
        'foo bar baz qux' | truncate(9, True)
        'foo bar baz qux' | truncate(11)
        'foo bar baz qux' | truncate(11, False, '..', 0)
        'foo' | truncate(2)
        '%s is %d years, %.2f %5s|%-5s|%05d %x %%' | format('Al', 3.7, 2.345, 'é', 'b', -42, 255)
        '%(a)s-%(b)r' | format(a=1, b='x')
        '%s' % 'x'
        '%s %s' % ('x', [1, 'a'])
        '%d' % 'x'
        '%s %s' % ('x',)
        '%s' % ('x', 'y')
        '%+d % d %e %g %G %c' % (1, 2, 12345.678, 0.0001, 1e20, 'x')
        '%*d|%.*f' % (5, 42, 1, 2.55)
        '%s' % map
        '%5.1s|' % 'abc'
        '{} {}'.format(1, 'a')
        '{1}{0}'.format('a', 'b')
        '{x.name}-{y[0]}'.format(x=users[0], y=[7])
        '{:>5}|{:<5}|{:^5}|{:05d}|{:,}|{:.2f}|{:x}|{!r}'.format('a', 'b', 'c', 42, 1234567, 2.5, 255, 'q')
        '{:*^9}|{:+d}|{:%}|{:e}'.format('mid', 5, 0.25, 1234.5)
        '{{}}{}'.format(1)
        '{'.format(1)
        '{} {0}'.format(1)
        '{a}'.format(b=1)
        'a'.nothing
        'a'.upper
        'a' | upper | lower | nofilter
        '<b>' | e
        '<b>' | e ~ '<'
        ('<b>' | e) + '<'
        '<b>' | safe
        'x' | safe is escaped
        'x' | safe is string
        ['<'] | e
        text | string is string
        'a'.__class__
        'a' | attr('upper') is callable
    """),
    "lists": printed(r"""
        [1]
        [1, 'a', none, true, 2.0, [], {}, ()]
        (1,)
        1, 2
        {'a': 1, "it's": 'x"y', 2: none, none: [1, (2, 3)]}
        ["it's", 'say "x"', "both ' and \"", 'new\nline', 'tab\t', 'é', '\x7f', '\u200b']
        numbers[0]
        numbers[-1]
        numbers[9]
        numbers[1:3]
        numbers[::-1]
        numbers[5:0:-2]
        numbers['a']
        numbers.0
        map.a.x
        map['a']['x'][1]
        map.nothing
        map.nothing.more
        map['nothing']
        map.items() | list
        map.items()
        map.keys()
        map.values() | list
        map.keys() | list
        map.items
        map.get('b')
        map.get('q')
        map.get('q', 5)
        map.get('q', default=5)
        map.pop('b')
        map.update({})
        map.pop is defined
        numbers.append(1)
        map | length
        map | list
        map | items | list
        map | dictsort
        map | dictsort(true)
        map | dictsort(reverse=true)
        {'a': 2, 'b': 1} | dictsort(by='value')
        {'a': 2, 'b': 1} | dictsort(by='other')
        {'b': 1, 'a': 2, 'b': 3}
        {1: 'a', 1.0: 'b', true: 'c'}
        {[1]: 2}
        'a' in {'a': 1}
        3 in numbers
        [1] in [[1], [2]]
        1 not in numbers
        'x' in none
        (1, 2) == (1, 2)
        (1, 2) == [1, 2]
        {'a': [1]} == {'a': [1.0]}
        [1] + [2]
        (1,) + (2,)
        [1] + (2,)
        [0] * 3
        2 * (1, 'a')
        numbers | sort
        numbers | sort(reverse=true)
        words | sort
        words | sort(case_sensitive=true)
        users | sort(attribute='age') | map(attribute='name') | list
        users | sort(attribute='age,name') | map(attribute='name') | list
        users | sort
        [1, 'a'] | sort
        words | unique | list
        words | unique(true) | list
        users | unique(attribute='age') | map(attribute='name') | join
        words | min
        words | max
        numbers | min
        numbers | max
        [] | min
        users | max(attribute='age')
        numbers | sum
        users | sum(attribute='age')
        [] | sum
        [[1], [2]] | sum(start=[])
        ['a'] | sum
        numbers | batch(2) | list
        numbers | batch(3, 0) | list
        numbers | slice(2) | list
        numbers | slice(3, 'x') | list
        users | groupby('age')
        users | groupby('age') | map(attribute='grouper') | list
        users | groupby('none_such', default=1) | length
        words | groupby(0) | list
        numbers | first
        numbers | last
        [] | first
        [] | last
        numbers | join(', ')
        numbers | join
        users | join(', ', attribute='name')
        users | map(attribute='tags.0') | list
        users | map(attribute='nick', default='-') | list
        words | map('upper') | list
        words | map('replace', 'p', 'b') | join(' ')
        words | map('nofilter') | list
        words | map(attribute='x', other=1) | list
        words | map | list
        words | select('in', ['fig', 'pear']) | list
        numbers | select('odd') | list
        numbers | select('gt', 1) | list
        numbers | select | list
        numbers | reject('equalto', 1) | list
        users | selectattr('tags') | map(attribute='name') | list
        users | selectattr('age', 'equalto', 30) | map(attribute='name') | join(',')
        users | selectattr('age', '>=', 26) | list | length
        users | rejectattr('age', 'eq', 30) | map(attribute='name') | first
        users | rejectattr('nick') | list | length
        users | selectattr('nick', 'defined') | list
        users | selectattr('name', 'string') | list | length
        users | selectattr | list
        numbers | select('nosuch') | list
        users | selectattr('tags') | length
        (users | selectattr('nick')) is defined
        'yes' if users | selectattr('nick') else 'no'
        words | reverse | list
        words | reverse | first
        numbers | list | length
        range(5) | list
        range(2, 8, 3) | list
        range(5, 0, -2) | list
        range(3)
        range(1, 3)
        range(0, 9, 2)[1:3] | list
        range(10)[3]
        5 in range(10)
        range(0) | list
        range(1, 2, 0)
        range(1.5)
        range(1000000)
        range('a')
        dict(a=1, b=2)
        dict([('a', 1)])
        dict({'a': 1}, b=2)
        [1, 2].count(1)
        [1, 2].index(2)
        [1, 2].index(3)
        [1, 2].copy()
        [nowhere, 1]
        [1, 2, 3][1:] | sum
        none[0]
        none.x
        5[0]
        5['a']
        map[1:]
        1 | list
        1 | length
        none | length
        nowhere | length
        nowhere | list
        nowhere | join
        nowhere.x
        nowhere + 1
        nowhere ~ 1
        nowhere == nowhere2
        nowhere | upper
        nowhere | default('d')
        '' | default('d')
        '' | default('d', true)
        none | d('x')
        false | default('x', boolean=true)
        nowhere()
        nowhere | int
        nowhere is iterable
        nowhere is sequence
        1 in nowhere
        -nowhere
        not nowhere
        words | attr('x')
        map | attr('a')
    """),
    "json": printed(r"""
        [1, none] | tojson
        {'a': none} | tojson
        {} | tojson
        [] | tojson
        [[], {}] | tojson(indent=2)
        map | tojson
        map | tojson(indent=2)
        map | tojson(indent='--')
        map | tojson(indent=0)
        users | tojson
        {'b': 1, 'a': 2} | tojson(sort_keys=true)
        {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':'))
        {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':'), indent=1)
        'é"\n\t\x01\x7f\\/😀' | tojson
        'é😀\x7f' | tojson(ensure_ascii=true)
        [1.0, 2, 1e20, 1e-7, true, false] | tojson
        ['inf' | float, 'nan' | float] | tojson
        (1, 2) | tojson
        {1: 2, true: 3, none: 4, 1.5: 5} | tojson
        range(3) | tojson
        nowhere | tojson
        [nowhere] | tojson
        map.items() | tojson
        map | tojson(wrong=1)
        map | tojson(true, 2, none, true)
        '<a href="x">' | tojson
        none | tojson
        'x' | tojson | length
    """),
    "tests": printed(r"""
        1 is number
        true is number
        1.0 is number
        'a' is number
        1 is integer
        true is integer
        1.0 is float
        1 is float
        true is boolean
        none is none
        nowhere is none
        nowhere is undefined
        nowhere is not defined
        map is mapping
        [] is mapping
        map is sequence
        [] is sequence
        'a' is sequence
        5 is sequence
        (1,) is sequence
        map is iterable
        5 is iterable
        'a' is iterable
        (users | selectattr('tags')) is iterable
        (users | selectattr('tags')) is sequence
        map.keys() is sequence
        none is sameas none
        true is sameas true
        1 is sameas true
        map is sameas map
        map is sameas {}
        1 is in [1, 2]
        1 is not in [1, 2]
        'a' is in 'abc'
        1 is eq 1
        1 is ne(2)
        2 is gt 1
        2 is lessthan 1
        2 is >= 1
        raise_exception is callable
        1 is callable
        'upper' is filter
        'nope' is filter
        'odd' is test
        true is true
        1 is true
        false is false
        3 is odd
        4 is even
        'a' is odd
        1 is nosuch
        1 is odd is even
        1 is defined and 2 is defined
        not 1 is odd
        1 is string or 'a' is string
        loop is defined
        namespace is callable
        map.a is mapping and map.b is not mapping
    """),
    "precedence": printed("""
        1 + 2 * 3 - 4
        (1 + 2) * 3
        1 ~ 2 + 3
        1 + 2 ~ 3
        2 * 3 ~ 4 * 5
        not true or true
        not (true or true)
        true and false or true
        1 if false
        1 if false else 2 if false else 3
        'a' if 1 == 1 and 2 else 'b'
        1 == 1 == true
        1 in [1] == true
        not 1 in [2]
        -1 ** 2
        'a' ~ 'b' | upper
        ('a' ~ 'b') | upper
        1 + 2 | string + '3'
        [1, 2] | length + 1
        5 - 3 - 1
        2 ** 2 ** 3
        100 / 10 / 2
        7 // 2 * 2 + 7 % 2
        none or 'x'
        '' or none or 0
        1 and 'y'
        (true, false)[1]
        {'a': 1}.a
        'abc'[1:].upper()
        -'3' | int
        - 3 | string | length
        (1)
        ()
        [1,]
        [,]
        {'a': 1,}
        1 +
        a b
        (1
        1)
        true = 1
    """),
    "statements": [
        "{% for x in [1, 2] %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [1, 2] if x > 5 %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in [3, 4, 5] if x != 4 %}{{ loop.index }}:{{ x }}:{{ loop.length }}:{{ loop.last }} {% endfor %}",
        "{% for x in nowhere %}a{% endfor %}ok",
        "{% for x in 5 %}a{% endfor %}",
        "{% for x in none %}a{% endfor %}",
        "{% for c in 'aé' %}[{{ c }}]{% endfor %}",
        "{% for k in map %}{{ k }}{% endfor %}",
        "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for k, v in map | dictsort %}{{ k }}={{ v }};{% endfor %}",
        "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }} {% endfor %}",
        "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
        "{% for a, b in ['xy'] %}{{ a }}-{{ b }}{% endfor %}",
        "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}",
        "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}"
        "{% endfor %}",
        "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
        "{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }};"
        "{% endfor %}",
        "{% for x in range(5) %}{{ loop.cycle('a', 'b', 'c') }}{% endfor %}",
        "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
        "{% for x in [1, 1, 2, 1] %}{{ loop.changed(x) }} {% endfor %}",
        "{% for x in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
        "{% for x in [1, 2] %}{{ loop }}{% endfor %}",
        "{% for x in [1, 2] %}{% for y in 'ab' %}{{ loop.index }}{{ x }}{{ y }}{% endfor %}{{ loop.index }}"
        "{% endfor %}",
        "{% for x in [1, 2] %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}{% endfor %}{% endfor %}",
        "{% for n in [{'v': 1, 'c': [{'v': 2}, {'v': 3, 'c': [{'v': 4}]}]}] recursive %}{{ loop.depth }}{{ n.v }}"
        "{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
        "{% for n in [1] %}{{ loop([2]) }}{% endfor %}",
        "{% for x in users | map(attribute='name') %}{{ loop.last }}{{ x }}{% endfor %}",
        "{% set g = words | map('upper') %}{% for x in g %}{{ x }}{% endfor %}|{% for x in g %}{{ x }}{% endfor %}",
        "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
        "{% if true %}{% set x = 1 %}{% endif %}{{ x }}",
        "{% set ns = namespace(n=0, found=false) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}"
        "{% endfor %}{{ ns.n }}",
        "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}{{ ns.c }}|{{ ns }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{{ ns is mapping }}{{ ns is iterable }}",
        "{% set m = messages[0] %}{% set m.content = 'changed' %}",
        "{% set x.y = 1 %}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
        "{% set a, b = [1] %}",
        "{% set a = 1, 2 %}{{ a }}",
        "{% set (a, b) = (1, 2) %}{{ a + b }}",
        "{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x is string }}",
        "{% set x | upper | trim %} a{{ 'b' }} {% endset %}[{{ x }}]",
        "{% set x %}{% set y = 1 %}{% endset %}{{ y }}",
        "{% set true = 1 %}",
        "{% set x = 1 if false %}{{ x is defined }}",
        "{% macro f(a, b=2, c='x' ~ a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}"
        "{{ f(b=5, a=4) }}",
        "{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}",
        "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}",
        "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}",
        "{% macro f(a, b=1, c) %}{% endmacro %}",
        "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}",
        "{% set x = 1 %}{% macro f() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}",
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(f(1)) }}{{ f('a') | upper }}{{ f(1) is string }}",
        "{% macro f(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'x': 3, 'y': 4}) }}{{ f(5, *[6]) }}",
        "{% macro f(a, b=1) %}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}",
        "{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}in{{ 1 }}{% endcall %}",
        "{% macro f() %}({{ caller(1, b=2) }}){% endmacro %}{% call(a, b) f() %}{{ a }}{{ b }}{% endcall %}",
        "{% macro f() %}x{% endmacro %}{% call f() %}in{% endcall %}",
        "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}",
        "{% for m in [1, 2] %}{% macro f() %}{{ m }}{% endmacro %}{{ f() }}{% endfor %}",
        "{% macro f() %}{% for x in [1] %}{% break %}{% endfor %}{% endmacro %}{{ f() }}ok",
        "{% macro f() %}{{ varargs | length }}{% endmacro %}{{ f(1, 2) }}",
        "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}",
        "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
        "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}",
        "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
        "{% filter upper %}a{{ 'é' }}{% endfilter %}",
        "{% filter replace('a', 'b') | indent(2, true) %}aa\nca{% endfilter %}",
        "{% filter trim %}{% set q = 1 %} x {% endfilter %}{{ q }}",
        "{% raw %}{{ x }} {% if %}{# c #}{% endraw %}y",
        "a {%- raw -%}  {{ x }}  {%- endraw -%}  b",
        "a\n  {% raw %}\n b\n  {% endraw %}\nc",
        "{% raw %}x",
        "{% print 1 %}{% print 'a', 2 %}",
        "{% generation %}a{{ 1 }}{% endgeneration %}b",
        "{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}",
        "{% if 1 %}a{% elif 2 %}b{% else %}c{% endif %}",
        "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% else %}d{% endif %}",
        "{% if 1, 2 %}a{% endif %}",
        "{% if 1: %}a{% endif %}{% for x in [1]: %}{{ x }}{% endfor %}",
        "{% if 1 %}a{% else %}b{% elif 1 %}c{% endif %}",
        "{% if 1 %}a",
        "{% endif %}",
        "{% else %}",
        "{% break %}",
        "{% nosuch %}",
        "{% do x %}",
        "{% if %}{% endif %}",
        "{% for x %}{% endfor %}",
        "{% for in x %}{% endfor %}",
        "{{ }}",
        "{% %}",
        "{{ 'a' }",
        "{# c",
        "{{ {'a': {'b': 1}}['a']['b'] }}",
        "{{ {'a': {'b': 1}} }}",
        "{{ '}}' ~ '%}' }}",
        "{% set d = {'a': {'b': 2}} %}{{ d.a.b }}",
        "{{ raise_exception('stop') }}",
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}"
        "{{ c.reset() }}{{ c.next() }}",
        "{% set j = joiner(' | ') %}{{ j() }}a{{ j() }}b{{ j() }}c",
        "{{ namespace }}",
        "{% set tools = tools | default([]) %}{{ tools }}",
        "{% set x = x | default('y') %}{{ x }}",
        "{% autoescape true %}{% endautoescape %}x{{ nowhere() }}",
        "{% include 'a' %}",
        "{% set loop = 1 %}{{ loop }}",
        "{% for loop in [1] %}{{ loop }}{% endfor %}",
        "{{ users[0].name.upper().lower()[0] }}",
        "{{ (users | first).name }}",
        "{{ users | map(attribute='age') | sum / 2 }}",
        "{%- for m in messages if m.role != 'system' -%}{{ m.role }}{% if not loop.last %},{% endif %}{%- endfor -%}",
        "{{ messages[1:] | map(attribute='role') | join('/') }}",
        "{{ messages[-1].content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}",
        "{{ messages[0]['role'] == 'system' and messages | length > 1 }}",
        "{%- set ns = namespace(x=[]) %}{%- for m in messages %}{%- set ns.x = ns.x + [m.role] %}"
        "{%- endfor %}{{ ns.x }}",
    ],
    "blanks": [
        "a\n{% if true %}\nb\n{% endif %}\nc\n",
        "a\n  {% if true %}  \n  b\n  {% endif %}\nc\n\n",
        "  {% if true -%}\n  b  {%- endif %}  c",
        "  {%+ if true +%}\n b {%+ endif +%}\n c",
        "a {{- ' b ' -}} c",
        "a\n\n  {{- 'b' }}\n\n{{ 'c' -}}\n\n d",
        "{# a #}\nb\n  {# c #}  \nd {#- e -#} f",
        "  {#+ a +#}\nb",
        "a  {# c #}{% if true %}x{% endif %}\n  y",
        "{{ 1 }}  {% if true %}x{% endif %}",
        "{% if true %}  {% if true %}x{% endif %}{% endif %}",
        "{% if true %}\n  {% if true %}\n    x\n  {% endif %}\n{% endif %}\ny",
        "\t{% set x = 1 %}\t\n{{ x }}\n",
        "a\r\nb\rc\r\n",
        "a\u00a0{%- if true %}\u00a0b{% endif %}",
        "a\n\u00a0{% if true %}b{% endif %}",
        "{{- 1 }}{{-1 }}{{ -1 }}{{+1 }}",
        "{%- set x = 'a' -%}\n\n\n{{- x -}}\n\n\n{%- set y = 1 %}\n",
        "{{ 'a\n b' }}\n",
        "\n\n",
        "\n",
        "",
        "{ {{ 1 }} } {{ '{{' }} %} }}",
        "{% if true %}a{% endif -%}   \n b",
        "{%-if true-%}a{%-endif-%}b",
    ],
}
