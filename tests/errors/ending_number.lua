local het = require "het"
return het.data.text {
  path = "text.txt", packing = true,
  ending = 5000000000,
}
