#include "core/run/joining.h"

#include <algorithm>
#include <utility>

#include "core/cluster/environment.h"

namespace het {

Joining begin_joining(JoinSettings settings) {
  Joining joining;
  joining.launched = read_launched_rank(settings.environment);
  joining.timeout = settings.timeout.value_or(joining.timeout);
  joining.warn_after = settings.warn_after.value_or(joining.warn_after);
  RendezvousOptions options;
  options.launched = joining.launched;
  options.etcd = settings.etcd;
  options.store = settings.environment("HETRUN_STORE");
  options.interface = settings.interface;
  options.secret = settings.secret;
  options.timeout = joining.timeout;
  options.warn_after = joining.warn_after;
  options.warn = settings.warn;
  if (settings.timeout) {  // a call takes no longer than a wait; in the moment of failure a fraction of that
    options.call = std::min(options.call, *settings.timeout);
    options.brief = std::min(options.brief, *settings.timeout / 10);
  }
  joining.rendezvous = find_store(options);
  joining.host = host_of_process(settings.environment);
  if (joining.host.empty()) joining.host = joining.rendezvous.address;
  joining.settings = std::move(settings);
  return joining;
}

TcpOptions tcp_options(const Joining& joining, std::shared_ptr<KeyValue> store,
                       std::shared_ptr<KeyValue> board) {
  const JoinSettings& settings = joining.settings;
  TcpOptions tcp;
  tcp.run = settings.run;
  tcp.secret = settings.secret;
  tcp.host = joining.host;
  tcp.store = std::move(store);
  tcp.board = std::move(board);
  tcp.prefix = "traffic";
  tcp.timeouts.warn = settings.warn;
  if (settings.timeout) tcp.timeouts.timeout = *settings.timeout;
  if (settings.warn_after) tcp.timeouts.warn_after = *settings.warn_after;
  return tcp;
}

}  // namespace het
