local het = require "het"
return het.train { model = het.load("gpt2_plain", { padding = 0 }), batch = 2, steps = 2,
  data = het.data.text "text.txt", optimizer = het.optim.sgd { lr = 0.1 } }
