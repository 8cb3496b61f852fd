-- host/core/io/yaml.c, yaml_map.c, yaml_words.c and lua/accelerate/utils/yaml.lua: YAML as PyYAML
-- reads it, within bounds.
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local yaml = require "accelerate.utils.yaml"

-- A value in the form of spec/reference/yaml_reference.lua.
local function plain(value)
  if value == yaml.null then return { null = true } end
  if type(value) == "number" then return { number = value } end
  if type(value) ~= "table" then return value end
  local list = {}
  if #value > 0 then
    for i, item in ipairs(value) do list[i] = plain(item) end
    return { list = list }
  end
  for key, item in pairs(value) do list[tostring(key)] = plain(item) end
  return { map = list }
end

-- The reference's value in the form of plain().
local function expected(value)
  if type(value) ~= "table" then return value end
  local list = {}
  if value.number then
    return { number = tonumber((value.number:gsub("inf", "1e999"):gsub("nan", "0/0"))) or "nan" }
  end
  if value.list then
    for i, item in ipairs(value.list) do list[i] = expected(item) end
    return #list > 0 and { list = list } or { map = {} } -- an empty list is an empty table
  end
  if not value.map then return value end
  for _, pair in ipairs(value.map) do
    local key = pair[1]
    list[type(key) == "table" and tostring(tonumber(key.number)) or tostring(key)] = expected(pair[2])
  end
  return { map = list }
end

local function refused(text, message, is_json)
  local ok, err = pcall(yaml.decode, text, "config.yaml", is_json)
  assert.is_false(ok, text)
  assert.is_truthy(tostring(err):find(message, 1, true), ("%q is not in %q"):format(message, err))
end

describe("a YAML text", function()
  it("has the values that PyYAML reads", function()
    local cases = require "spec.reference.yaml_reference"
    assert.is_true(#cases > 150)
    for _, case in ipairs(cases) do
      local text, wanted = case[1], json.decode(case[2])
      local ok, value = pcall(yaml.decode, text)
      if type(wanted) == "table" and wanted.refused then
        -- PyYAML fails on words of its own rules (0b_, =), and on a tab that libyaml takes
        if ok then assert.is_truthy(text:find "^a:[ %w_=:<\t]+\n$", text) end
      else
        assert.is_true(ok, ("%q: %s"):format(text, tostring(value)))
        local got, want = plain(value), expected(wanted)
        if type(want) == "table" and want.map and type(want.map.a) == "table" and want.map.a.date then
          assert.are.equal("string", type(value.a), text)
        elseif type(want) == "table" and want.map and type(want.map.a) == "table"
          and want.map.a.number == "nan" then
          assert.is_true(value.a ~= value.a, text)
        else
          assert.are.same(want, got, ("%q"):format(text))
        end
      end
    end
  end)

  it("comes with the line of each entry", function()
    local value, lines = yaml.decode("a: 1\n\nb:\n  - x\n  - y\nc: {d: 2}\n")
    assert.are.same({ a = 1, b = 3, c = 6 }, lines[value])
    assert.are.same({ 4, 5 }, lines[value.b])
    assert.are.same({ d = 6 }, lines[value.c])
  end)

  it("that is wrong is refused with file and line", function()
    refused("a: 1\nb: [1, 2\n", "config.yaml:3: did not find expected ',' or ']'")
    refused("a: 1\na: 2\n", "config.yaml:2: the key a is there twice (line 1)")
    refused("a:\n  ? [1]\n  : 2\n", "config.yaml:2: a key is a list")
    refused("a: !!python/object/apply:os.system [ls]\n",
      "config.yaml:1: the tag tag:yaml.org,2002:python/object/apply")
    refused("a: 1\n--- \nb: 1\n", "config.yaml:2: a second document")
    refused("a: *b\n", "there is no anchor &b before it")
    refused("a: &b\n  c: *b\n", "config.yaml:2: *b inside of &b: a value cannot contain itself")
    refused("a: \xff\xfe\n", "config.yaml:1: invalid leading UTF-8 octet")
    refused("a: 1\n<<: 2\n", "config.yaml:2: <<: expected a map or a list of maps, got a whole number")
  end)

  it("has bounds of depth, size, anchors and what << copies", function()
    refused(("["):rep(65), "inside each other more than 64 times")
    refused(("a"):rep(2 ^ 22 + 1), "expected at most 4194304")
    local anchors = {}
    for i = 1, 257 do anchors[i] = ("- &a%d 1\n"):format(i) end
    refused(table.concat(anchors), "config.yaml:257: more than 256 anchors")
    refused("- 1\n" .. ("- 1\n"):rep(2 ^ 18), "more than 262144 values")
    local big, laughs = {}, { "a: &a0 [1, 2]\n" }
    for i = 1, 4000 do big[i] = ("  k%d: 1\n"):format(i) end
    local copies = { "a: &a\n" .. table.concat(big) }
    for i = 1, 40 do copies[#copies + 1] = ("m%d: {<<: *a}\n"):format(i) end
    refused(table.concat(copies), "<<: too many entries")
    -- what refers to itself many times over is one table many times over
    for i = 1, 60 do laughs[#laughs + 1] = ("b%d: &a%d [*a%d, *a%d]\n"):format(i, i, i - 1, i - 1) end
    local value = yaml.decode(table.concat(laughs))
    assert.is_true(rawequal(value.b60[1], value.b60[2]))
  end)

  it("may be JSON, whose words are fewer", function()
    local value = yaml.decode(
      '{\n\t"a": "\\ud83d\\ude00\\/", "b": 1e5, "c": [true, null, -0.5], "d": "\\\\ud83d"\n}', "x", true)
    assert.are.same({ a = "\xf0\x9f\x98\x80/", b = 1e5, c = { true, yaml.null, -0.5 }, d = "\\ud83d" }, value)
    refused('{"a": no}', "config.yaml:1: 'no': JSON has texts in double quotes", true)
    refused('{"a": 010}', "'010': JSON", true)
    refused('{"a": 1, "a": 2}', "the key a is there twice", true)
  end)
end)

describe("a written YAML text", function()
  local values = {
    "no", "NO", "y", "n", "null", "~", "", " ", "a b", "-", "- a", "a: b", "a #b", "#", "10", "1_0", "0x1f",
    "1:30", "1e5", ".5",
    ".inf", "2001-12-14", "<<", "=", "'", '"', "it's", "a\nb", "a\tb", "\0", "\27", "\127", "\xc2\x85",
    "\xc3\xa9", "\xe2\x80\xa8",
    "\xef\xbb\xbf", "\xf0\x9f\x98\x80", "[a]", "{a}", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a", "a,b",
    "?", "? a", ":", ":a",
    "trailing ", "~/hostfile", "/nvme", "MULTI_GPU", "10.0.0.1", "0,1", ("x"):rep(300),
    0, -1, 1.5, 1e-5, 1e20, 1e300, 2 ^ 53, 0.1, -2.5e-10, math.huge, -math.huge, true, false, yaml.null,
  }
  local whole = { list = values, nested = { { a = 1, b = { {}, { 2 } } }, {} }, [7] = "seven", [true] = "yes",
    [2.5] = "x" }
  for i, value in ipairs(values) do
    if type(value) == "string" then whole[value] = i end
  end

  it("reads back as the value", function()
    assert.are.same(whole, (yaml.decode(yaml.encode(whole))))
    for _, value in ipairs(values) do assert.are.same(value, (yaml.decode(yaml.encode(value)))) end
    assert.are.same({}, (yaml.decode(yaml.encode {})))
  end)

  it("keeps maps whose keys are numbers, whatever # says of them", function()
    for _, text in ipairs { "0: 'a'\n2: 'b'\n", "0: null\n2: null\n", "-1: 1\n0: 2\n", "2: 1\n" } do
      assert.are.equal(text, yaml.encode((yaml.decode(text))))
    end
  end)

  it("is read by PyYAML as the value", function()
    local python = os.getenv "PYTHON" or "python3"
    if os.execute(python .. " -c 'import yaml' >/dev/null 2>&1") ~= true then
      return pending("needs PyYAML")
    end
    host.in_folder(function(folder)
      assert(fs.write(folder .. "/x.yaml", yaml.encode(values)))
      local pipe = io.popen(([[%s -c 'import yaml, json
for v in yaml.safe_load(open("%s/x.yaml", encoding="utf-8")): print(json.dumps(v))']]):format(python, folder))
      local i = 0
      for line in pipe:lines() do
        i = i + 1
        local value = values[i]
        if type(value) == "number" and math.abs(value) == math.huge then
          assert.are.equal(value > 0 and "Infinity" or "-Infinity", line)
        elseif value == yaml.null then assert.are.equal("null", line)
        else assert.are.equal(value, (json.decode("[" .. line .. "]"))[1], line) end
      end
      pipe:close()
      assert.are.equal(#values, i)
    end)
  end)

  it("is refused for what YAML cannot hold", function()
    local endless = {}
    endless.a = endless
    for value, message in pairs { [endless] = "inside itself", [{ print }] = "cannot write a function",
      ["\xff"] = "not UTF-8",
      ["\xed\xa0\x80"] = "not UTF-8", [{ 1, a = 2 }] = "list and map entries",
      [{ [{}] = 1 }] = "a key must be" } do
      local ok, err = pcall(yaml.encode, value)
      assert.is_false(ok)
      assert.is_truthy(err:find(message, 1, true), err)
    end
  end)
end)
