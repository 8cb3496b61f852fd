-- C is as `make fmt` writes it.  Where there is no clang-format 14 a line says so, and nothing is
-- checked.
return function(tree, report)
  local root = "'" .. tree.root:gsub("'", "'\\''") .. "'"
  local pipe = assert(io.popen("cd " .. root .. " && host/tools/format --check 2>&1; echo status $?"))
  local text = pipe:read "*a"
  pipe:close()
  local status = tonumber(text:match "status (%d+)\n$")
  if status == 2 then
    io.stderr:write("lint: format is not checked: ", text:match "^[^\n]*", "\n")
    return
  end
  for line in text:gmatch "[^\n]+" do
    local path, what = line:match "^(.-): (not formatted.*)$"
    if path then report(path, 1, what)
    elseif not line:find "^status" then report("host/tools/format", 1, line) end
  end
end
