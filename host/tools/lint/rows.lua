-- A row of the op table is named where it lives: a file that compares the row it has with one is
-- one of the row's own (its rule, gradient, kernel, or a function that the row names).  Everybody
-- else reads a trait or a function of the row, so that a new row is whole when its line is
-- written.
local source = require "host.tools.lint.source"

-- Words behind a row's summary, and what their functions are called.
local FUNCTIONS = { JOIN = "ax_join_", COMPOSED = "ax_complex_", FLOPS = "ax_flops_", CALL = "call_" }

-- The functions of each row that ops.def names, by the row's ID; and which names rows have.
local function rows_of(tree)
  local rows, names = {}, {}
  for path in tree:each({ def = true }, { "host/core/ops/" }) do
    local text = tree:apart(path).bare
    for id, name, rule, gradient, rest in (text:gsub("%f[%w_]OP%(", "\1") .. "\1"):gmatch(
      "\1([%u%d_]+),%s*([%w_]+),%s*,%s*%u+,%s*([%w_]+),%s*([%w_]+),([^\1]*)%f[\1]") do
      local own = { "ax_infer_" .. rule, "ax_grad_" .. gradient, "ax_cpu_" .. name }
      for word, fn in rest:gmatch "(%u+)%(([%w_]+)%)" do
        if FUNCTIONS[word] then own[#own + 1] = FUNCTIONS[word] .. fn end
      end
      rows[id], names[name] = { own = own, gradient = gradient, name = name }, true
    end
  end
  return rows, names
end

-- Whether one of the row's functions is defined here, rather than called.
local function lives(row, code)
  for _, name in ipairs(row.own) do
    if code:find("\n%a[%w_ *]*%f[%w_]" .. name .. "%(") then return true end
  end
  return code:find("\nRULE%(" .. row.gradient .. "%f[^%w_]")
    or code:find("_KERNEL%(" .. row.name .. "%f[^%w_]")
end

-- How a line compares.
local ASKS = { "case%s+AX_OP_([%u%d_]+)", "[=!<>]=%s*AX_OP_([%u%d_]+)", "AX_OP_([%u%d_]+)%s*[=!<>]=",
  "%[AX_OP_([%u%d_]+)%]%s*=" }

return function(tree, report)
  local rows, names
  for path in tree:each({ c = true }, { "host/", "kernels/" }) do
    if not rows then rows, names = rows_of(tree) end
    local parts = tree:apart(path)
    for number, line in source.lines(parts.code) do
      local name = line:match 'cmp%(ax_ops%b[]%.name,%s*"([%w_]+)"'
        or line:match 'cmp%([%w_]+%->name,%s*"([%w_]+)"'
      if names[name] then
        report(path, number, ("asks for the row named %s; give the row a trait or a function (ops.def)")
          :format(name))
      end
    end
    for number, line in source.lines(parts.bare) do
      for _, pattern in ipairs(ASKS) do
        for id in line:gmatch(pattern) do
          if rows[id] and not lives(rows[id], parts.code) then
            report(path, number, ("asks for the row %s, whose rule, gradient and kernel are elsewhere; " ..
              "give the row a trait or a function (ops.def)"):format(id))
          end
        end
      end
      local fn = line:match "[=!]=%s*(ax_%a+_[%w_]+)%s*[^%w_(]"
      if fn and (fn:find "^ax_infer_" or fn:find "^ax_grad_") then
        report(path, number, ("asks whose rule %s is; give the rows of it a trait (ops.def)"):format(fn))
      end
    end
  end
end
