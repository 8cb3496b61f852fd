-- host/tools/attrs.c: the names of attributes, made from signatures, and what ends the build.
local disk = require "spec.support.disk"
local host = require "spec.support.host"

local FILES = "host/plugin.h host/optim_table.h host/signature.h host/core/ops/signature.c " ..
  "host/tools/attrs.c " ..
  "host/core/status.def host/core/dtype.def host/core/encodings.def host/core/optim.def"

local function succeeded(status) return status == true or status == 0 end -- by the version of Lua

-- What the program writes for a table of these rows: its output, or nil and its message.
local function written(rows)
  local text, message
  host.in_folder(function(root)
    assert(succeeded(os.execute(("cp --parents %s '%s'"):format(FILES, root))))
    local file = assert(io.open(root .. "/host/core/ops/ops.def", "w"))
    file:write("#ifndef OP_FAMILY\n#define OP_FAMILY(name, rows)\n#endif\n", rows)
    file:close()
    assert(succeeded(os.execute(([[cd '%s' && cc -std=gnu11 -Ihost -DAX_NO_OP_ATTRS -o attrs \
      host/tools/attrs.c host/core/ops/signature.c -lpthread]]):format(root))))
    local ok = succeeded(os.execute(("cd '%s' && ./attrs >out 2>err"):format(root)))
    text, message = ok and disk.read(root .. "/out") or nil, disk.read(root .. "/err")
  end)
  return text, message
end

local function row(id, signature, rule, gradient)
  return ('OP(%s, %s, "%s", KERNEL, %s, %s, 0, KEEP, "")\n'):format(id, id:lower(), signature, rule,
    gradient or "NONE")
end

local function members(text, name) return text:match("struct {([^\n]*)} " .. name .. ";") end

describe("attributes of ops", function()
  local there = io.open "host/tools/attrs.c"
  if there then there:close() end
  local compiler = succeeded(os.execute "command -v cc >/dev/null 2>&1")
  local function case(name, body)
    it(name, function()
      if not there or not compiler then return pending "needs the sources and a C compiler" end
      body()
    end)
  end

  case("have their parameter's name, and its place", function()
    local text = written(row("A", "x:T dim:dim n:int? scale:num=1 pair:int2 | more:bool -> y", "a"))
    assert.equal(" int64_t dim; int64_t n; int64_t pair[2]; int64_t more; int64_t h0_[9]; double scale; " ..
      "double g0_[3]; ", members(text, "a"))
    text = written(row("B", "x:T from:dims to:dims last:int", "b"))
    assert.equal(" int64_t n_to, to[8]; int64_t last; int64_t h0_[4]; double g0_[4]; ", members(text, "b"))
    assert.is_nil(members(written(row("C", "x:T sizes:ints", "c")), "c"))
  end)

  case("of rows that share a rule are those that all have in one place", function()
    local text = written(row("A", "x:T kind:int dim:dim", "both", "alike") ..
      row("B", "x:T other:int dim:dim low:num", "both", "alike") .. row("C", "x:T dim:dim", "third", "alike"))
    assert.equal(" int64_t h0_[1]; int64_t dim; int64_t h1_[12]; double g0_[4]; ", members(text, "both"))
    assert.is_nil(members(text, "alike"))
    assert.is_nil(members(text, "third"))
  end)

  case("of an OP_FAMILY are those that all have in one place", function()
    local text = written(row("A", "x:T p:num dim:dim", "one") .. row("AB", "x:T p:num", "two") ..
      'OP_FAMILY(near, "A AB")\n')
    assert.equal(" int64_t h0_[14]; double p; double g0_[3]; ", members(text, "near"))
    local _, message = written(row("A", "x:T n:int", "one") .. row("B", "x:T p:num", "two") ..
      'OP_FAMILY(near, "A B")\n')
    assert.is_truthy(message:find("the rows of OP_FAMILY(near) have nothing in common", 1, true), message)
  end)

  case("end the build where a row's name stands for rows that differ from it", function()
    local a = row("A", "x:T k:int dim:dim", "a")
    assert.is_truthy(written(a .. row("B", "x:T k:int dim:dim extra:int", "a")))
    for _, signature in ipairs { "x:T dim:dim k:int", "x:T k:int dim:num", "x:T k:int",
      "x:T k:int2 dim:dim" } do
      local text, message = written(a .. row("B", signature, "a"))
      assert.is_nil(text, signature)
      assert.is_truthy(message:find("A and B share `a`, but not the place of", 1, true), message)
    end
  end)

  case("end the build where ax_attrs has no room for them", function()
    local _, message = written(row("A", "x:T a:num b:num c:num d:num e:num", "a"))
    assert.is_truthy(message:find("A has 0 integer attributes and 5 numbers; ax_attrs has 14 and 4 places", 1,
      true), message)
  end)
end)
