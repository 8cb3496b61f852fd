-- data.write_npy, write_npz, write_csv and write_image: what they write, their readers read.
local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local readers = require "accelerate.data.readers"
local reference = require "spec.reference.files_reference"

local DTYPES = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool",
  "complex64", "complex128" }

describe("write_npy and write_npz", function()
  it("write what NumPy writes", function()
    host.in_folder(function(dir)
      local seen = 0
      for _, case in ipairs(reference.npy) do
        local descr, dtype, _, hex = unpack(case)
        local bytes = disk.from_hex(hex)
        if descr:find("^[<|]") and not bytes:find("True", 1, true) and DTYPES[dtype] ~= false
          and ({ ["<f4"] = 1, ["<f8"] = 1, ["<f2"] = 1, ["<i8"] = 1, ["<i4"] = 1, ["|u1"] = 1,
          ["|b1"] = 1 })[descr] then
          disk.write(dir .. "/numpy", bytes)
          data.write_npy(dir .. "/ours", core.read_npy(dir .. "/numpy"))
          assert.equal(bytes, disk.read(dir .. "/ours"), descr)
          seen = seen + 1
        end
      end
      assert.equal(7, seen)
      data.write_npy(dir .. "/ours", core.tensor(2.5))
      assert.equal(disk.from_hex(reference.npy_scalar), disk.read(dir .. "/ours"))
    end)
  end)

  it("bring back every type and shape, views too", function()
    host.in_folder(function(dir)
      local all = {}
      for _, dtype in ipairs(DTYPES) do
        local base = core.tensor({ { 1, 0, 1 }, { 0, 1, 1 } }, { dtype = dtype })
        for i, t in ipairs { base, base:t(), base[1], core.tensor(1, { dtype = dtype }),
          core.zeros({ 0, 3 }, { dtype = dtype }) } do
          all[dtype .. i] = t
          data.write_npy(dir .. "/x.npy", t)
          local back = data.read_npy(dir .. "/x.npy")
          assert.equal(dtype, back.dtype)
          assert.same(t.shape, back.shape)
          assert.same(t:totable(), back:totable())
        end
      end
      data.write_npz(dir .. "/x.npz", all)
      local back = data.read_npz(dir .. "/x.npz")
      for name, t in pairs(all) do assert.same(t:totable(), back[name]:totable(), name) end
      data.write_npz(dir .. "/x.npz", {})
      assert.same({}, (data.read_npz(dir .. "/x.npz")))
    end)
  end)

  it("say what is wrong", function()
    assert.error_matches(function() data.write_npy("x", 5) end,
      "write_npy: argument 2 must be a tensor, got 5")
    assert.error_matches(function() data.write_npz("x", { a = 5 }) end, "write_npz: 'a' must be a tensor")
    assert.error_matches(function() data.write_npz("x", { core.ones(1) }) end, "write_npz: a name")
    assert.error_matches(function() data.write_npz("x", { [{}] = core.ones(1) }) end, "write_npz: a name")
    assert.error_matches(function() data.write_npz("x", core.ones(1)) end,
      "expected a table of tensors by name")
    assert.error_matches(function() data.write_npy("/nowhere/x", core.ones(1)) end,
      "write_npy: '/nowhere/x': cannot write it")
  end)
end)

describe("write_csv", function()
  it("brings columns back with their types and bits", function()
    host.in_folder(function(dir)
      local path = dir .. "/x.csv"
      local columns = { whole = core.tensor({ 1, -2, 3 }, { dtype = "int64" }),
        float = core.tensor { 0.1, -1e-30, 16777216 },
        text = { "plain", 'a "quoted", one', "two\nlines" }, flag = core.tensor { true, false, true } }
      columns.whole:data_ptr()[0] = 9007199254740993LL
      data.write_csv(path, columns)
      local back, names = readers.read_columns(path)
      assert.same({ "flag", "float", "text", "whole" }, names)
      assert.equal("int64", back.whole.dtype)
      assert.is_true(back.whole:data_ptr()[0] == 9007199254740993LL)
      assert.same(columns.float:totable(), back.float:totable())
      assert.same(columns.text, back.text)
      assert.same({ true, false, true }, data.read_csv(path, { types = { flag = "bool" } }):column("flag"))
      local doubles = core.tensor({ 0.1, 1 / 3, -1e300, 5e-324, 2 ^ 60, 1e15 + 0.5 }, { dtype = "float64" })
      data.write_csv(path, { x = doubles })
      assert.same(doubles:totable(), data.read_csv(path, { float = "float64" }):column("x"))
      local odd = core.tensor { 0 / 0, 1 / 0, -1 / 0 }
      data.write_csv(path, { x = odd, y = { 1, 2, 3 } })
      back = data.read_csv(path):column("x")
      assert.is_true(back[1] ~= back[1])
      assert.same({ math.huge, -math.huge }, { back[2], back[3] })
    end)
  end)

  it("brings back what stands alone on its line or begins a file", function()
    host.in_folder(function(dir)
      local path = dir .. "/x.csv"
      data.write_csv(path, { a = { "x", "", "y" } })
      assert.same({ "x", "", "y" }, data.read_csv(path):column("a"))
      data.write_csv(path, { a = core.tensor { 1, 0 / 0, 3 } })
      local back = data.read_csv(path):column("a")
      assert.same({ 3, 1, 3 }, { #back, back[1], back[3] })
      assert.is_true(back[2] ~= back[2])
      for _, values in ipairs { { 1, -2 }, { 0 / 0, 0 / 0 } } do
        data.write_csv(path, { a = core.tensor(values) })
        assert.equal("float32", readers.read_columns(path).a.dtype)
      end
      local mark = "\239\187\191a" -- a byte order mark, as part of a name
      data.write_csv(path, { [mark] = { "x" } })
      assert.same({ mark }, select(2, readers.read_columns(path)))
    end)
  end)

  it("takes datasets, orders, delimiters and no header", function()
    host.in_folder(function(dir)
      local set = data.Dataset.from_table({ b = { "x", "y" }, a = { 1.5, 2 } },
        { column_names = { "b", "a" } })
      data.write_csv(dir .. "/x.tsv", set)
      assert.equal("b\ta\nx\t1.5\ny\t2\n", disk.read(dir .. "/x.tsv"))
      local floats = data.Dataset.from_table { f = core.tensor { 0.1, 0.2, 0.3 } }
      data.write_csv(dir .. "/x", floats:select { 3, 1 })
      assert.equal("f\n0.3\n0.1\n", disk.read(dir .. "/x"))
      data.write_csv(dir .. "/x", set:select { 2 }, { column_names = { "a" }, header = false })
      assert.equal("2\n", disk.read(dir .. "/x"))
      data.write_csv(dir .. "/x", { a = { "1;2" }, b = { true } }, { delimiter = ";" })
      assert.equal('a;b\n"1;2";true\n', disk.read(dir .. "/x"))
    end)
  end)

  it("says what is wrong", function()
    local function wrong(text, ...)
      local ok, err = pcall(data.write_csv, ...)
      assert.is_false(ok)
      assert.truthy(err:find(text, 1, true), err)
    end
    wrong("expected a dataset with columns", "x", 5)
    wrong("column 'b' has 1 rows, column 'a' has 2", "x", { a = { 1, 2 }, b = { 1 } })
    wrong("column 'a' must have one dim, got [2, 2]", "x", { a = core.ones(2, 2) })
    wrong("row 2 of column 'a' must be a string, a number or a boolean", "x", { a = { 1, {} } })
    wrong("there is no column 'c'", "x", { a = { 1 } }, { column_names = { "c" } })
    wrong("must be one character", "x", { a = { 1 } }, { delimiter = ", " })
    wrong("cannot write it", "/nowhere/x", { a = { 1 } })
  end)
end)

describe("write_image", function()
  it("brings pixels back", function()
    host.in_folder(function(dir)
      local path = dir .. "/x.png"
      local image = core.randint(0, 256, { 3, 5, 7 }, { dtype = "uint8" })
      data.write_image(path, image)
      assert.equal("\137PNG\r\n\26\n", disk.read(path):sub(1, 8))
      local ok, back = pcall(data.read_image, path)
      if not ok then return pending(back) end
      assert.same(image:totable(), back:totable())
      data.write_image(path, image[1])
      assert.same({ image[1]:totable() }, data.read_image(path, "GRAY"):totable())
      data.write_image(path, image:float() / 255)
      assert.same(image:totable(), data.read_image(path):totable())
    end)
  end)

  it("says what is wrong", function()
    assert.error_matches(function() data.write_image("x.jpg", core.ones(1, 2, 2)) end, "ends in .png")
    assert.error_matches(function() data.write_image("x.png", core.ones(2)) end, "got %[2%]")
    assert.error_matches(function() data.write_image("x.png", core.ones(5, 2, 2)) end, "1 to 4 channels")
    assert.error_matches(function() data.write_image("x.png", 5) end, "must be a tensor")
  end)
end)
