-- lua/accelerate/messages/hints.lua: what to write instead.
local host = require "spec.support.host"

describe("what is written as in Python", function()
  -- The first line of what a script of one line says.
  local function first(folder, text)
    local path = folder .. "/s.lua"
    local f = assert(io.open(path, "w"))
    f:write(text, "\n")
    f:close()
    local status, _, err = host.run { path }
    assert.are.equal(1, status, text)
    return (err:match "accel%-run: ([^\n]*)")
  end

  it("is named with what Lua has instead", function()
    host.in_folder(function(folder)
      for text, pattern in pairs {
        ["for i = 1, 2 do if i == 1 then continue end end"] =
          "; a loop goes on by: goto continue, with ::continue:: before its end$",
        ["for i = 1, 2 do\ncontinue\nend"] = "; a loop goes on by: goto continue, ",
        ["local x if x then\nx = 1\nelse if x == nil then\nx = 2\nend"] =
          "'end' expected .*; `else if` begins an if of its own, .*: elseif %(line 3%)$",
        ["if x then pass end"] = "; an empty block needs nothing$",
        ["local x = 1 x++"] = "; there is no %+%+: x = x %+ 1$",
        ["local t = {'a': 1}"] = "; a table is written { name = 1 }, or { %[\"a name\"%] = 1 }$",
        ['local s = "a" "b"'] = '; texts are joined by "%.%.": "a" %.%. "b"$',
        ["local list = {} list.append(1)"] =
          "'append' %(a nil value%); a list grows by table.insert%(list, x%)$",
        ["require 'nn'"] = "module 'nn' not found; its name is 'accelerate.nn'$",
        ["local x = require 'accelerate.tensor'.ones(2) print(x.shape[2] + 1)"] =
          "a nil value; shape%[2%] is nil where there are fewer dims: shape%[1%] is the first size, #x.shape",
        ["local t = require 'accelerate.tensor' local x = t.zeros(t.ones(2).shape[0], 2)"] =
          "got nil; shape%[0%] is nil where there are fewer dims",
        ["local x = a @ b"] = "unexpected symbol near '@'; a product of matrices is written x:matmul%(y%)$",
        ["if x != 3 then end"] = "; unequal is written ~=$",
        ["x += 1"] = "; there is no %+= and the like: x = x %+ y$",
        ["print(x[1:3])"] = "; a range of positions is a list, both ends included: x%[{ { 1, 3 } }%]$",
        ["local s = f(*layers)"] = "near '%*'; the entries of a list are unpack%(list%); where modules ",
        ["local s = f(1, **options)"] = "near '%*'; options by name are a table at the end: f%(x, options%)$",
        ["print(x:shape)"] = "; a field is read with a dot, x.shape, and a method is called, x:shape%(%)$",
        ["local n = x:shape[1]"] = "; a field is read with a dot, x.shape, and a method is called, ",
        ["import torch"] = "; modules are loaded by require: ",
        ["for i in range(3): print(i)"] = "; it is written: for i = 1, n do",
        ["for i in range(3): print(i)\nprint(2)"] = "; it is written: for i = 1, n do",
        ["while x: print(i)\nprint(2)"] = "; it is written: while ... do",
        ["local x = [1, 2]"] = "; a list is written { 1, 2, 3 }$",
        ["print(len({}))"] = "attempt to call global 'len' %(a nil value%); in Lua: #x is the length$",
        ["tensor.zeros(2)"] = "; it was not required: local tensor = require \"accelerate.tensor\"$",
        ["torch.zeros(2)"] = "; PyTorch's names are in the modules accelerate.tensor, ",
        ["require 'accelerate.optm'"] =
          "module 'accelerate.optm' not found; did you mean 'accelerate.optim'%?$",
        ["local N = {} function N.f() return self.x end N.f()"] =
          "; a method has `self` when it is written with a colon",
        ["for i = 1, require 'accelerate.tensor'.zeros(2) do end"] =
          "'for' limit must be a number; if it is a tensor",
        ["local x = require 'accelerate.tensor'.ones(5) for i = 1, 5, " ..
          "2 do local part = x[{ { i, i + 1 } }] end"] =
          "the range {5, 6} does not fit a dim of size 5; Python cuts a range at the end: write " ..
          "math.min%(last, x:size%(1%)%), or x:split%(n%)",
        ["print(f(1, dim=2))"] =
          "near '='; arguments by name are a table at the end: x:sum%(1, { keepdim = true }%)$",
        ["print(~x)"] = "near '~'; of a tensor of booleans: x:logical_not%(%)$",
        ["local x = (a < 1) & b"] = "near '&'; of tensors of booleans: x:logical_and%(y%)$",
        ["local x = (a < 1) | b"] = "near '|'; of tensors of booleans: x:logical_or%(y%)$",
        ["local x = a if b else c"] = "; a choice is written: condition and x or y$",
        ["local x = { f(i) for i in y }"] = "; a list is filled in a loop: for i, x in ipairs%(list%)",
        ["assert x == y"] = "; a call has parentheses: assert%(x%)$",
        ["raise ValueError(1)"] = "; an error is raised by error%(message%)$",
        ["del x"] = "; a variable is let go by: x = nil$",
        ["local x = y is None"] = "; it is written: x == nil$",
        ["local x = y is not None"] = "; it is written: x ~= nil$",
        ["print(f\"{x}\")"] = "global 'f' %(a nil value%); in Lua: a text with values is made by ",
        ["print(max(1, 2))"] = "; in Lua: math.max%(a, b%) is of numbers",
        ["for b in loader:\n  print(b)\nprint(2)"] = ":3: .*; it is written: for ... do ... end %(line 1%)$",
        ["for b in loader:\n  y = b"] = ":2: .*; it is written: for ... do ... end %(line 1%)$",
        ["if x:\n  print(x)\nprint(3)"] = "; it is written: if ... then ... else ... end %(line 1%)$",
        ["while True:\n  break"] = "; it is written: while ... do ... end %(line 1%)$",
        ["try:\n  f(1)\nexcept ValueError as e:\n  f(2)"] = ":3: .*; errors are caught by pcall: ",
        ["local d = {\n  'a': 1,\n}"] = ":2: .*; a table is written { name = 1 }, or ",
        ["let y = 3"] = "; a variable is made by: local x = 1$",
        ["global y"] = "; a name without `local` is global: nothing declares it$",
        ["local s = \"\"\"doc\"\"\""] = "; a text of several lines is written %[%[ ... %]%]$",
        ["print(x[1, 2])"] = "; positions in several dims are a list: x%[{ 1, 2 }%]$",
        ["require 'accelerate.torch'"] = "; PyTorch's names are in the modules accelerate.tensor, ",
        ["local y = require 'accelerate.tensor'.ones(2)[{ { -3, -1 } }]"] =
          "; Python cuts a range at the start: write %-math.min%(n, x:size%(1%)%)$",
        ["local y = require 'accelerate.tensor'.ones(2):len()"] = '"len"; instead: #x, the size of dim 1; ',
        ["local y = require 'accelerate.tensor'.ones(2):float16()"] = '"float16"; instead: x:half%(%), or ',
        ["print('a' + 1)"] = "on a string value; texts are joined by \"..\"",
      } do
        assert.matches(pattern, first(folder, text))
      end
    end)
  end)

  it("is not seen where nothing of it is there, nor in errors of a running script", function()
    host.in_folder(function(folder)
      assert.matches(":1: unexpected symbol near '='$", first(folder, "x = = 1"))
      assert.matches(":3: '=' expected near '<eof>'$", first(folder, "local continue = 1\nx"))
      assert.matches(":3: 'do' expected near 'y'$", first(folder, "print 'for a:'\nfor x in pairs {}\ny = 1"))
      assert.matches(":1: no place near 'x'$", first(folder, "error \"no place near 'x'\" -- a != b"))
    end)
  end)

  it("is the object's own name, also where the line cannot be read", function()
    local _, out = host.run { "-e", [[local nn = require "accelerate.nn"
local F = require "accelerate.nn.functional"
local N = nn.class "Net" function N:init() self.fc = nn.Linear(2, 2) end
local m = N() print(pcall(function() local y = m.head(F.relu) return y end))]] }
    assert.is_nil(out:find("multi_head", 1, true), out)
  end)

  it("is a function of a module with a colon", function()
    local DOT = "; the functions of a module are called with a dot: "
    host.in_folder(function(folder)
      local modules = "local tensor, nn, F, optim = require 'accelerate.tensor', require 'accelerate.nn', " ..
        "require 'accelerate.nn.functional', require 'accelerate.optim' local x = tensor.ones(2, 3) "
      for text, hint in pairs {
        ["local y = tensor:zeros(2, 3)"] = "tensor.zeros(...)",
        ["local y = nn:Linear(2, 3)"] = "nn.Linear(...)",
        ["local function f() return nn:Linear(2, 3) end local y = f()"] = "nn.Linear(...)",
        ["local y = F:interpolate(x, { scale_factor = 2 })"] = "F.interpolate(...)",
        ["local o = optim:Adam(nn.Linear(2, 2):parameters(), { lr = 1 })"] = "optim.Adam(...)",
        ["local o = nn.init:ones_(x)"] = "nn.init.ones_(...)",
      } do
        local message = first(folder, modules .. text)
        assert.equal(DOT .. hint, message:sub(-#DOT - #hint), message)
      end
      for _, text in ipairs { "local tensor = x local y = tensor:sum({ dim = 9 })",
        "local y = x:sum({ dim = 9 })", "local y = F:relu(x)" } do
        assert.is_nil(first(folder, modules .. text):find(DOT, 1, true), text)
      end
    end)
  end)

  it("is a function of a class with a colon", function()
    local DOT = "; this function of a class is called with a dot: "
    host.in_folder(function(folder)
      local modules = "local nn, data = require 'accelerate.nn', require 'accelerate.data' " ..
        "local x = require('accelerate.tensor').ones(2, 3) "
      for text, hint in pairs {
        ["local e = nn.Embedding:from_pretrained(x)"] = "nn.Embedding.from_pretrained(...)",
        ["local E = nn.Embedding local e = E:from_pretrained(x)"] = "E.from_pretrained(...)",
        ["local m = nn.SyncBatchNorm:convert_sync_batchnorm(nn.ReLU())"] =
          "nn.SyncBatchNorm.convert_sync_batchnorm(...)",
        ["local d = data.Dataset:from_list({ { a = 1 } })"] = "data.Dataset.from_list(...)",
      } do
        local message = first(folder, modules .. text)
        assert.equal(DOT .. hint, message:sub(-#DOT - #hint), message)
      end
      for _, text in ipairs { "nn.Embedding.from_pretrained(3)", "nn.Linear(2, 2):load_state_dict(3)" } do
        local message = first(folder, modules .. text)
        assert.is_nil(message:find(DOT, 1, true), message)
      end
    end)
  end)

  it("is a module of an object with a colon, or without the object", function()
    host.in_folder(function(folder)
      local head = "local nn = require 'accelerate.nn' local x = require('accelerate.tensor').ones(1, 2)\n" ..
        "local B = nn.class 'B' function B:init() self.l = nn.Linear(2, 2) end\n" ..
        "function B:forward(x) local y = self.l(x) return y end\n" ..
        "local N = nn.class 'N'\n" ..
        "function N:init() self.b, self.fc, self.lstm = B(), nn.Linear(2, 2), nn.LSTM(2, 2) end\n"
      for text, hint in pairs {
        ["local y = self:b(x) return y"] = "; 'b' is a module, which is called with a dot: self.b(...)",
        ["local y = self:lstm(x) return y"] =
          "; 'lstm' is a module, which is called with a dot: self.lstm(...)",
        ["return self:fc(x)"] = "Linear: 1 argument expected, got 2, the first of them a N; " ..
          "a module that an object has is called with a dot: self.name(x)",
        ["local y = fc(x) return y"] = "attempt to call global 'fc' (a nil value); did you mean self.fc?",
      } do
        local message = first(folder, ("%sfunction N:forward(x)\n%s\nend\nlocal y = N()(x)"):format(head,
          text))
        assert.equal(hint, message:sub(-#hint), message)
      end
    end)
  end)

  it("is a method of Python's tables and texts", function()
    host.in_folder(function(folder)
      local head = "local nn = require 'accelerate.nn' local m, list, s = nn.ReLU(), {}, 'a b'\n"
      for text, hint in pairs {
        ["for k in m:state_dict():items() do end"] =
          "'items' (a nil value); a table is walked by pairs: for name, value in pairs(t) do ... end",
        ["list:append(3)"] = "'append' (a nil value); a list grows by table.insert(list, x)",
        ["local v = list:get('lr', 1)"] = "'get' (a nil value); an entry of a table is t[name] or default",
        ["local y = s:startswith('a')"] = "'startswith' (a nil value); in Lua: s:sub(1, #start) == start",
        ["local d = require 'accelerate.data'.DataLoader({ 1 }) for i in d:enumerate() do end"] =
          "'enumerate' (a nil value); ipairs counts what it walks: for i, x in ipairs(loader) do ... end",
        ["local d = require 'accelerate.data'.DataLoader({ 1 }) d = require " ..
          "'accelerate'.Accelerator():prepare(d) " ..
          "for i in d:enumerate() do end"] =
          "DataLoaderShard has no 'enumerate'; ipairs counts what it walks: for i, " ..
            "x in ipairs(loader) do ... end",
        ["local a = np.zeros(2)"] = "'np' (a nil value); arrays are tensors, of the module accelerate.tensor",
        ["local f = open('x')"] =
          "'open' (a nil value); in Lua: io.open(path) gives a file, whose f:read(\"*a\") is its text",
        ["m:keys()"] = "'keys' (a nil value); ReLU has no 'keys'",
        ["nn.ModuleDict():updat()"] =
          "'updat' (a nil value); ModuleDict has no 'updat'; did you mean 'update'?",
      } do
        local message = first(folder, head .. text)
        assert.equal(hint, message:sub(-#hint), message)
      end
    end)
  end)

  it("is a class of layers with its objects' tensors", function()
    host.in_folder(function(folder)
      local modules = "local tensor, nn = require 'accelerate.tensor', require 'accelerate.nn' " ..
        "local x = tensor.ones(2, 3) "
      for text, name in pairs {
        ["local l = nn.MSELoss(x, x)"] = "MSELoss",
        ["local l = nn.CrossEntropyLoss(x, x:long())"] = "CrossEntropyLoss",
        ["local y = nn.ReLU(x)"] = "ReLU", ["local y = nn.Softmax(x)"] = "Softmax",
        ["local y = nn.Linear(x)"] = "Linear", ["local y = nn.Sigmoid(x)"] = "Sigmoid",
      } do
        local hint = ("; %s(...) makes an object, which is called with tensors: nn.%s(...)(x)"):format(name,
          name)
        local message = first(folder, modules .. text)
        assert.equal(hint, message:sub(-#hint), message)
      end
      for _, text in ipairs { "nn.ReLU()(x, x)", "nn.Linear(2, 3)(x)", "nn.BatchNorm2d(3)(x)" } do
        local message = first(folder, modules .. text)
        assert.is_nil(message:find("makes an object", 1, true), message)
      end
    end)
  end)

  -- Lua reads the two lines as one: f()(...).
  it("is named where a line begins with a parenthesis", function()
    host.in_folder(function(folder)
      local function said(text)
        local path = folder .. "/s.lua"
        local f = assert(io.open(path, "w"))
        f:write(text, "\n")
        f:close()
        return select(3, host.run { path })
      end
      local hint = "a line that begins with ( goes on with the line before it; write ;( to begin anew"
      local x = 'local x = require("accelerate.tensor").ones(2)\n'
      for _, text in ipairs { "local y = x:exp()\n(y * 2):sum()", "x = x\n-- words\n\n(x * 2):sum()" } do
        local err = said(x .. text)
        assert.is_truthy(err:find(hint, 1, true), err)
      end
      for _, text in ipairs { "local y = x:exp()\n;(y * 2):sum():backward()", "do\n(x * 2):backward()\nend",
        "local function f()\n(x * 2):backward()\nend f()", "if x then\n(x * 2):backward()\nend" } do
        local err = said(x .. text)
        assert.is_truthy(err:find("does not require a gradient", 1, true), err)
        assert.is_nil(err:find(hint, 1, true), err)
      end
    end)
  end)

  it("names Lua's values", function()
    local out, err, _
    host.in_folder(function(folder)
      local path = folder .. "/s.lua"
      local f = assert(io.open(path, "w"))
      f:write "x = None\nprint(x)\n"
      f:close()
      _, out, err = host.run { path }
    end)
    assert.are.equal("nil\n", out)
    assert.matches("the global 'None' is nil: nothing has set it; did you mean 'nil'%?", err)
  end)
end)
