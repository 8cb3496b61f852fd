-- lua/accelerate/tokenizers/chat: the language of chat templates. The texts that are wanted are
-- Jinja's, from spec/generators/gen_chat_reference.py.
local chat = require "accelerate.tokenizers.chat"
local disk = require "spec.support.disk"
local json = require "accelerate.utils.json"
local ordered = require "accelerate.utils.ordered"

local reference = assert(json.decode(disk.read "spec/reference/tokenizers/chat.json"))

-- What a template gives, or nil and the message.
local function render(template, variables)
  local ok, text = pcall(chat.render, template, variables or {})
  if ok then return text end
  return nil, tostring(text)
end

local function raises(words, template, variables)
  local text, why = render(template, variables)
  assert.is_nil(text, template)
  assert.truthy(why:find(words, 1, true), ("%s: %s"):format(template:sub(1, 200), why))
end

-- Adds a line to `wrong` where a template gives another text than Jinja; nil: Jinja raises.
local function compare(wrong, template, wanted, variables)
  local text, why = render(template, variables)
  if text ~= wanted then
    wrong[#wrong + 1] = ("%s\n  wanted %s\n  got %s"):format(template, tostring(wanted), text or why)
  elseif not text and not why:find("chat template, line %d+: ") then
    wrong[#wrong + 1] = ("%s\n  raises without its line: %s"):format(template, why)
  end
end

describe("a chat template gives what Jinja gives, or raises with it:", function()
  for _, group in ipairs { "numbers", "texts", "lists", "json", "tests", "precedence", "statements",
    "blanks" } do
    it(group, function()
      local wrong, n = {}, 0
      for _, case in ipairs(reference.cases) do
        if case[1] == group then
          n = n + 1
          compare(wrong, case[2], case[3], reference.variables)
        end
      end
      assert.is_true(n > 20)
      assert.same({}, wrong)
    end)
  end

  it("templates of a random grammar", function()
    local wrong = {}
    for _, case in ipairs(reference.random) do compare(wrong, case[1], case[2], reference.variables) end
    assert.is_true(#reference.random >= 400)
    assert.same({}, wrong)
  end)

  it("templates with the constructions of model families", function()
    local wrong, n = {}, 0
    for _, case in ipairs(reference.chats) do
      local given = reference.conversations[case.conversation]
      local variables = { messages = given.messages, tools = given.tools, documents = given.documents,
        add_generation_prompt = case.prompt }
      for _, more in ipairs { reference.tokens, given.variables or {} } do
        for name, value in pairs(more) do variables[name] = value end
      end
      compare(wrong, reference.families[case.family], case.text, variables)
      n = n + 1
    end
    assert.is_true(n >= 132)
    assert.same({}, wrong)
  end)
end)

describe("a chat template refuses by name and line", function()
  it("statements that need other templates", function()
    for _, name in ipairs { "include 'a'", "import 'a' as b", "from 'a' import b", "extends 'a'", "block b",
      "autoescape true" } do
      raises(("line 2: the statement '%s' is not supported"):format(name:match "%a+"), "x\n{% " .. name ..
        " %}")
    end
    raises("line 1: the statement 'nosuch' is not supported", "{% nosuch %}")
  end)

  it("filters, tests and functions that are not there", function()
    raises("line 2: the filter 'nosuch' is not supported", "\n{{ 'a' | nosuch }}")
    raises("the filter 'pprint' is not supported", "{{ 'a' | pprint }}")
    raises("the test 'nosuch' is not supported", "{{ 1 is nosuch }}")
    raises("'nosuch' is undefined", "{{ nosuch() }}")
    raises("the function 'lipsum' is not supported", "{{ lipsum() }}")
    raises("the method 'translate' of a text is not supported", "{{ 'a'.translate({}) }}")
  end)

  it("arguments that are not taken", function()
    raises("the filter 'upper' takes at most 0 arguments, got 1", "{{ 'a' | upper(1) }}")
    raises("the filter 'indent' has no argument 'by'", "{{ 'a' | indent(by=1) }}")
    raises("the filter 'replace' needs the argument 'new'", "{{ 'a' | replace('a') }}")
    raises("the filter 'join' got the argument 'd' twice", "{{ [1] | join('a', d='b') }}")
    raises("the method 'replace' of a text has no argument 'old'", "{{ 'a'.replace(old='a', new='b') }}")
    raises("the method 'strip' of a text takes at most 1 argument, got 2", "{{ 'a'.strip('a', 'b') }}")
    raises("the function 'range' has no argument 'step'", "{{ range(1, 2, step=1) }}")
    raises("the test 'odd' takes at most 0 arguments, got 1", "{{ 1 is odd(1) }}")
    raises("the filter 'tojson' has no argument 'wrong'", "{{ 1 | tojson(wrong=1) }}")
  end)

  it("methods that would change a value", function()
    raises("the method 'append' changes a list", "{{ [1].append(2) }}")
    raises("the method 'update' changes a map", "{{ {'a': 1}.update({}) }}")
  end)

  it("values without a text, and integers beyond 2^53", function()
    raises("an iterator has no text", "{{ [1] | map('string') }}")
    raises("the method 'items' of a map has no text", "{{ {}.items }}")
    raises("beyond 2^53", "{{ 2 ** 60 }}")
    raises("beyond 2^53", "{{ 9007199254740993 }}")
  end)
end)

describe("a chat template ends", function()
  -- A namespace's value x, changed 60 times.
  local function grown(first, change, name)
    return ("{%% set n = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}")
      :format(first, change) .. ("{%% set %s = n.x %%}"):format(name or "kept")
  end

  it("when it goes on for too long", function()
    local nested = grown("[1]", "[n.x, n.x]")
    for _, template in ipairs {
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}{{ range(99999) | length }}{% endfor %}",
      "{% for i in range(99999) if range(99999) | sum < 0 %}{% endfor %}",
      "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
      nested .. grown("[1]", "[n.x, n.x]", "other") .. "{{ kept == other }}",
      nested .. "{{ n.x | tojson }}", nested .. "{{ n.x }}", grown("[1]", "n.x + n.x"),
      "{{ [1] * 10 ** 12 }}",
      "{{ [1] | batch(1000000000, 1) | list }}", "{{ [1] | slice(1000000000) | list }}",
      "{% set x = big ~ 'b' %}{% set y = big ~ 'c' %}{% for i in range(99999) " ..
        "%}{% set q = x < y %}{% endfor %}",
      "{{ ('a' * 30000000) | list }}", "{{ ('a' * 30000000).replace('a', 'b') }}",
    } do
      raises("the template takes too long", template, { big = ("a"):rep(1e6) })
    end
    raises("takes too long", "{{ ('a' * 16000000).find('a' * 8000000 ~ 'b') }}")
    raises("a range of more than 100000 numbers", "{{ range(1, 2 ** 52) }}")
  end)

  it("when a text becomes too long", function()
    for _, template in ipairs { grown("'a'", "n.x ~ n.x"), grown("'a'", "n.x + n.x"), "{{ 'a' * 10 ** 12 }}",
      grown("'ab'", "[n.x, n.x] | join(n.x)"), "{{ [[1]] | tojson(indent=1000000000) }}",
      "{{ 'a\nb' | indent(1000000000) }}", "{{ 'a' | center(1000000000) }}", "{{ 'a'.ljust(1000000000) }}",
      "{{ '1'.zfill(1000000000) }}", "{{ '%1000000000s' % 'a' }}", "{{ '%.1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}", "{{ '\t'.expandtabs(1000000000) }}",
    } do
      raises("a text is too long", template)
    end
    raises("the texts are too long", grown("'aaaa'", "n.x.replace('aa', n.x)"))
    raises("the texts are too long", "{% for i in range(99999) %}{{ big }}{% endfor %}",
      { big = ("a"):rep(1e6) })
    raises("the texts are too long", "{% for i in range(99999) %}{% set x = big[1:] %}{% endfor %}",
      { big = ("a"):rep(1e6) })
  end)

  it("when it is nested too deep, with the line", function()
    for _, words in ipairs { ("not "):rep(1e5) .. "1", ("-"):rep(1e5) .. "1", "1" .. ("|abs"):rep(1e5),
      "1" .. ("+1"):rep(1e5), "x" .. ("[0]"):rep(1e5), ("("):rep(500) .. ")" } do
      raises("line 2: ", "x\n{{ " .. words .. " }}")
      raises("too deep", "x\n{{ " .. words .. " }}")
    end
    raises("macros call one another more than 150 deep", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")
    raises("too deep", grown("[1]", "[n.x]"):gsub("60", "99999") .. "{{ n.x }}")
    assert.equal("x\n1", render("x\n{{ 1" .. ("~''"):rep(1e4) .. " }}"))
  end)
end)

describe("the values that a chat template is given", function()
  it("are never changed by it", function()
    local messages = { { role = "user", content = "hi" } }
    raises("only what namespace() made can be changed, 'm' is a map",
      "{% set m = messages[0] %}{% set m.content = 'changed' %}", { messages = messages })
    raises("only what namespace() made", "{% set messages.x = 1 %}", { messages = messages })
    assert.same({ { role = "user", content = "hi" } }, messages)
  end)

  it("come in the order that Transformers writes the keys of messages and tools in", function()
    local tools = { { type = "function", ["function"] = { name = "f", description = "d", parameters = {
      type = "object", required = { "zeta", "alpha" }, properties = {
        alpha = { type = "string", description = "a" }, zeta = { type = "number" },
        beta = { type = "null" } } } } } }
    assert.equal('[{"type": "function", "function": {"name": "f", "description": "d", "parameters": ' ..
      '{"type": "object", "properties": {"zeta": {"type": "number"}, "alpha": {"type": "string", ' ..
        '"description": "a"}, ' ..
      '"beta": {"type": "null"}}, "required": ["zeta", "alpha"]}}}]', render("{{ tools | tojson }}",
      { tools = tools }))
    assert.equal("{'role': 'user', 'content': 'x', 'tool_calls': [{'id': '1', 'type': 'function', " ..
      "'function': " ..
      "{'name': 'f', 'arguments': {'a': 1, 'name': 2}}}], 'zz': 1}",
        render("{{ messages[0] }}", { messages = {
        { zz = 1, content = "x", role = "user", tool_calls = { { type = "function", id = "1",
          ["function"] = { arguments = { name = 2, a = 1 }, name = "f" } } } } } }))
  end)

  it("keep the order of ordered tables, and are sorted otherwise", function()
    local map = ordered.new()
    map.z = 1
    map.role = 2
    assert.equal("{'z': 1, 'role': 2}", render("{{ messages[0] }}", { messages = { map } }))
    assert.equal("{'a': 1, 'b': 2}", render("{{ x }}", { x = { b = 2, a = 1 } }))
  end)

  it("are lists where an empty table stands for one", function()
    assert.equal('[] {"a": {}} {"required": []}', render("{{ x | tojson }} {{ y | tojson }} {{ z | tojson }}",
      { x = json.list {}, y = { a = {} }, z = { required = {} } }))
  end)

  it("have integers and fractions, and texts of whole characters", function()
    assert.equal("1 1.5 1e+20 True \239\191\189", render("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }}",
      { a = 1, b = 1.5, c = 1e20, d = true, e = "\255" }))
  end)

  it("are refused by name where a template has nothing like them", function()
    raises("x.f: a template takes texts, numbers, booleans and tables of them, got a function", "",
      { x = { f = print } })
    raises("x: a table has list and map entries", "", { x = { 1, a = 2 } })
    local loop = {}
    loop.loop = loop
    raises("nested too deep, or inside of itself", "", { x = loop })
  end)
end)

describe("strftime_now", function()
  it("gives the local time as strftime does", function()
    local before = os.date "%Y-%m-%d %H"
    local text = render "{{ strftime_now('%Y-%m-%d %H') }}"
    assert.is_true(text == before or text == os.date "%Y-%m-%d %H")
    assert.equal(os.date "%B %-d, %Y", render "{{ strftime_now('%B %-d, %Y') }}")
    assert.equal("100%  !*t", render "{{ strftime_now('100%% %Z%z !*t') }}")
    assert.truthy(render("{{ strftime_now('%f') }}"):find "^%d%d%d%d%d%d$")
  end)
end)
