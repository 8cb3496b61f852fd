local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local fuzz = require "spec.support.fuzz_files"
local host = require "spec.support.host"

local path = host.free_path ".csv"

local function read(text, opts)
  disk.write(path, text)
  return data.read_csv(path, opts)
end

local function fails_with(expected, text, opts)
  local ok, err = pcall(read, text, opts)
  assert.is_false(ok, "expected an error")
  assert.truthy(err:find(expected, 1, true), err)
  assert.truthy(err:find(path, 1, true), err)
end

local function rows(set)
  local list = {}
  for i = 1, set:len() do
    list[i] = {}
    for k, name in ipairs(set.column_names) do list[i][k] = set:get(i)[name] end
  end
  return list
end

describe("read_csv", function()
  teardown(function() os.remove(path) end)

  it("reads names, numbers and text", function()
    local set = read("id,name,score\n1,ann,0.5\n2,bob,-2e3\n")
    assert.same({ "id", "name", "score" }, set.column_names)
    assert.same({ { 1, "ann", 0.5 }, { 2, "bob", -2000 } }, rows(set))
    set:set_format "torch"
    assert.same({ "int64", "float32" }, { set:get(1).id.dtype, set:get(1).score.dtype })
  end)

  it("reads quotes, line ends in fields, CR LF, blank lines, a mark of UTF-8, and no line end at the end",
    function()
    assert.same({ { "a,b", 'say "hi"' }, { "two\nlines", "" }, { "x", "y" } },
      rows(read('\239\187\191p,q\r\n"a,b","say ""hi"""\r\n\r\n"two\nlines",\r\nx,y')))
    assert.same({ { 'a"b', "c" } }, rows(read('p,q\na"b,c\n')))
    assert.same({ { "'a", "b'" } }, rows(read("p,q\n'a,b'\n")))
    assert.same({ { "a,b" } }, rows(read("p\n'a,b'\n", { quote = "'" })))
    assert.same({ { '"a', 'b"' } }, rows(read('p,q\n"a,b"\n', { quote = false })))
    assert.same({ { "" }, { "b" } }, rows(read('p\n""\nb\n')))
  end)

  it("takes other delimiters, no header, names, some columns", function()
    assert.same({ { 1, 2 } }, rows(read("a;b\n1;2\n", { delimiter = ";" })))
    local set = read("1,2\n3,4\n", { header = false })
    assert.same({ "column_1", "column_2" }, set.column_names)
    assert.same({ { 1, 2 }, { 3, 4 } }, rows(set))
    assert.same({ "x", "y" }, read("1,2\n", { header = false, column_names = { "x", "y" } }).column_names)
    assert.same({ { 2 } }, rows(read("# made by hand\na,b\n1,2\n", { skip_lines = 1, columns = { "b" } })))
    local tsv = host.free_path ".tsv"
    disk.write(tsv, "a\tb\n1,5\tx\n")
    assert.same({ { "1,5", "x" } }, rows(data.read_csv(tsv)))
    os.remove(tsv)
  end)

  it("guesses types column by column, and takes them as told", function()
    local set = read("a,b,c,d\n1,1.5,x,\n,2,3,\n")
    set:set_format "torch"
    assert.is_true(set:get(2).a:isnan():item())
    assert.same({ "float32", "float32" }, { set:get(1).a.dtype, set:get(1).b.dtype })
    assert.same({ "x", "3" }, set:column "c")
    assert.same({ "", "" }, set:column "d")
    set = read("zip,n,ok,x\n01234,7,true,1\n",
      { types = { zip = "string", n = "uint8", ok = "bool", x = "float64" } })
    assert.equal("01234", set:get(1).zip)
    assert.is_true(set:get(1).ok)
    set:set_format "torch"
    assert.same({ "uint8", "bool", "float64" },
      { set:get(1).n.dtype, set:get(1).ok.dtype, set:get(1).x.dtype })
    assert.equal("float64", read("a\n1.5\n", { float = "float64" }):with_format "torch":get(1).a.dtype)
    assert.same({ "0x10", "1_000", "1e" }, read("a\n0x10\n1_000\n1e\n"):column "a")
    assert.same({ 9007199254740991, -3, 4 }, read("a\n9007199254740991\n -3\n+4 \n"):column "a")
    assert.near(1.2345678901234567e30, read("a\n12345678901234567e14\n", { float = "float64" }):get(1).a,
      1e15)
  end)

  it("reads nothing", function()
    assert.equal(0, read("a,b\n"):len())
    assert.equal(0, read("", { header = false, column_names = { "x" } }):len())
    fails_with("is empty; expected a line with the names of the columns", "")
  end)

  it("reads gzip", function()
    local zipped = host.free_path ".csv.gz"
    disk.write(path, "a,b\n1,x\n")
    os.execute(("gzip -c '%s' > '%s'"):format(path, zipped))
    assert.same({ { 1, "x" } }, rows(data.read_csv(zipped)))
    local f = io.open(zipped, "rb")
    local bytes = f:read "*a"
    f:close()
    disk.write(zipped, bytes:sub(1, -6))
    local ok, err = pcall(data.read_csv, zipped)
    assert.is_false(ok)
    assert.truthy(err:find("the compressed data ends too early", 1, true), err)
    assert.is_true(fuzz.damage(zipped, bytes, data.read_csv, { rounds = 50 }) > 20)
    os.remove(zipped)
  end)

  it("says which line is wrong", function()
    fails_with("line 3 has 1 fields, line 1 has 2", "a,b\n1,2\n3\n")
    fails_with("line 4 has 3 fields, line 1 has 2", "a,b\n\"x\ny\",2\n3,4,5\n")
    fails_with("line 2: a quoted field has no end", 'a,b\n"x,1\n')
    fails_with("line 2: text after the end of a quoted field", 'a,b\n"x"y,1\n')
    fails_with("line 3, column 'a': 'x' is no int64", "a\n1\nx\n", { types = { a = "int64" } })
    fails_with("line 2, column 'a': '300' is no uint8", "a\n300\n", { types = { a = "uint8" } })
    fails_with("line 2, column 'a': '' is no int64", "a,b\n,1\n", { types = { a = "int64" } })
    fails_with("columns 1 and 2 are both called 'a'", "a,a\n1,2\n")
    fails_with("has 2 columns, but there are 1 names", "a,b\n1,2\n", { column_names = { "x" } })
    fails_with("there is no column 'c'", "a,b\n1,2\n", { types = { c = "int64" } })
    fails_with("there is no column 'c'", "a,b\n1,2\n", { columns = { "c" } })
    local ok, err = pcall(data.read_csv, path, { delimiter = "ab" })
    assert.is_false(ok)
    assert.truthy(err:find("option 'delimiter' must be one character", 1, true), err)
    assert.truthy(select(2,
      pcall(data.read_csv, "/nowhere/x.csv")):find("'/nowhere/x.csv': cannot be opened: No such file", 1,
      true))
  end)

  it("survives damage", function()
    fuzz.damage(path, 'id,name,score\n1,"a, ""b""",1.5\n2,"line\nbreak",\n3,c,-2e3\n',
      function(p) return data.read_csv(p):to_list() end)
  end)

  it("leaks nothing when memory runs out", function()
    disk.write(path, "a,b\n1,x\n2.5,y\n")
    jit.off()
    data.read_csv(path)
    local bytes, structs = fuzz.held()
    for n = 1, 10 do
      core.debug_fail_alloc(n)
      pcall(data.read_csv, path)
      core.debug_fail_alloc(0)
    end
    local bytes_after, structs_after = fuzz.held()
    jit.on()
    assert.same({ bytes, structs }, { bytes_after, structs_after })
  end)
end)

describe("read_json", function()
  local file = host.free_path ".jsonl"
  teardown(function() os.remove(file) end)

  it("reads an object on each line, or a list", function()
    disk.write(file, '{"a": 1, "b": "x"}\n\n{"a": 2, "b": "y"}')
    assert.same({ { a = 1, b = "x" }, { a = 2, b = "y" } }, data.Dataset.from_json(file):to_list())
    disk.write(file, ' [{"a": [1, 2]}, {"a": []}]\n')
    assert.same({ 1, 2 }, data.Dataset.from_json(file):get(1).a)
    local set = data.load_dataset("json", { data_files = file, split = "train" })
    assert.equal(2, set:len())
  end)

  it("says which line is wrong", function()
    disk.write(file, '{"a": 1}\n{"a": \n')
    local ok, err = pcall(data.Dataset.from_json, file)
    assert.is_false(ok)
    assert.truthy(err:find(file, 1, true) and err:find("line 2: expected a value", 1, true), err)
    disk.write(file, '5\n')
    assert.truthy(select(2, pcall(data.Dataset.from_json, file)):find("line 1: expected an object, got 5", 1,
      true))
    assert.truthy(select(2,
      pcall(data.load_dataset, "cvs", { data_files = file })):find("did you mean 'csv'?", 1, true))
  end)
end)
