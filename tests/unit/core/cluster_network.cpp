#include <algorithm>
#include <catch2/catch.hpp>

#include "core/base/error.h"
#include "core/net/network.h"

using namespace het;

namespace {

const std::vector<NetworkAddress> kAddresses = {
    {"lo", "127.0.0.1", false, true, false},   {"lo", "::1", true, true, false},
    {"eth0", "fe80::1", true, false, true},    {"eth0", "fd00::7", true, false, false},
    {"eth0", "10.0.0.7", false, false, false}, {"ib0", "fe80::2", true, false, true},
    {"ib0", "fd01::7", true, false, false},    {"wg0", "fe80::3", true, false, true}};
const std::string kAll = "lo (127.0.0.1), lo (::1), eth0 (fd00::7), eth0 (10.0.0.7), ib0 (fd01::7)";

template <typename Body>
std::string sentence_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.sentence());
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("traffic is bound to what was named", "[cluster]") {
  const std::vector<std::pair<std::string, std::string>> named = {
      {"eth0", "10.0.0.7"}, {"10.0.0.7", "10.0.0.7"}, {"ib0", "fd01::7"},        {"fd00:0::7", "fd00::7"},
      {"lo", "127.0.0.1"},  {"::1", "::1"},           {"127.0.0.2", "127.0.0.2"}};
  for (const auto& [wanted, address] : named) CHECK(address_to_bind(wanted, kAddresses) == address);
}

TEST_CASE("an interface gives its address", "[cluster]") {
  const std::vector<std::pair<std::string, std::string>> found = {
      {"10.0.0.7", "eth0"}, {"fd00::7", "eth0"}, {"fd01::7", "ib0"}, {"::1", "lo"},
      {"127.0.0.1", "lo"},  {"127.0.0.2", "lo"}, {"10.0.0.8", ""}};
  for (const auto& [address, interface] : found) CHECK(interface_of(address, kAddresses) == interface);
}

TEST_CASE("traffic is never bound to every address", "[cluster]") {
  for (const char* wanted : {"0.0.0.0", "::", "0::0", "*"})
    CHECK(sentence_of([&] { address_to_bind(wanted, kAddresses); }) ==
          fmt::format(
              "usage: '{}' means every address of this machine, for everyone who reaches it; name one of {}",
              wanted, kAll));
}

TEST_CASE("what cannot be bound to is said, with what can", "[cluster]") {
  CHECK(sentence_of([] { address_to_bind("", kAddresses); }) ==
        "usage: no interface or address is named; this machine has " + kAll);
  CHECK(sentence_of([] { address_to_bind("10.0.0.8", kAddresses); }) ==
        "usage: this machine does not have the address 10.0.0.8; it has " + kAll);
  for (const char* wanted : {"eth1", "wg0", "10.0.0", "10.0.0.7:80"})
    CHECK(
        sentence_of([&] { address_to_bind(wanted, kAddresses); }) ==
        fmt::format("usage: '{}' is no address, and no interface that is up and has one; this machine has {}",
                    wanted, kAll));
}

TEST_CASE("the way to the master decides where nothing was named", "[cluster]") {
  CHECK(address_towards("") == "127.0.0.1");
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK_THAT(sentence_of([] { address_towards("no host has this name.invalid"); }),
             Catch::Matchers::StartsWith("usage: 'no host has this name.invalid' is no host known here"));
  const std::vector<NetworkAddress> here = list_addresses();
  const auto loopback = std::find_if(here.begin(), here.end(),
                                     [](const NetworkAddress& a) { return a.address == "127.0.0.1"; });
  REQUIRE(loopback != here.end());
  CHECK(loopback->loopback);
  for (const NetworkAddress& a : here) {
    if (a.v6) continue;
    CHECK(address_towards(a.address) == a.address);
    CHECK(address_to_bind(a.interface, here) != "");
  }
}
