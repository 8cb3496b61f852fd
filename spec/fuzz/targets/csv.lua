--- CSV and TSV files, with the reader's options.
local data = require "accelerate.data"
local readers = require "accelerate.data.readers"

local OPTIONS = {
  { delimiter = ";", quote = "'", float = "float64" },
  { header = false, quote = false, skip_lines = 1 },
  { delimiter = "\t", types = { a = "string", b = "bool" } },
}

return {
  ending = ".csv",
  read = function(path, bytes)
    if bytes then pcall(readers.read_columns, path, OPTIONS[#bytes % #OPTIONS + 1]) end
    local columns, names = readers.read_columns(path)
    return { columns = columns, names = names }
  end,
  write = function(value, path)
    data.write_csv(path, value.columns, { column_names = value.names })
  end,
}
