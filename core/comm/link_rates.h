// How fast the hosts of a run reach each other. Measured when hosts come, so that what moves between ranks
// goes over the fast links.
#pragma once

#include <string>
#include <vector>

#include "core/comm/communicator.h"

namespace het {

struct LinkRates {
  std::vector<double> bytes_per_second;  // by rank: that its host sends and receives at once; 0: not measured
  double latency_seconds = 0;            // of a message between two hosts, the longest; 0: not measured
};

// The first rank of each host exchanges messages with those of up to four other hosts, one after the other:
// larger ones until they take 8 ms, of at most 16 MiB. A host is as fast as its fastest exchange, so a slow
// one does not count against the others. Takes at most some 50 ms for each of the four where no link is below
// 100 Mbit/s. `hosts`: by rank; of a single one nothing is measured. All ranks call it and get the same.
// Throws Error(peer) when a rank is lost.
LinkRates measure_link_rates(Communicator& group, const std::vector<std::string>& hosts);

}  // namespace het
