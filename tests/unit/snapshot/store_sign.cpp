// What a store's client says and reads before and after the network: signatures, credentials, XML.
#include <catch2/catch.hpp>
#include <random>

#include "snapshot/store/backoff.h"
#include "snapshot/store/credentials.h"
#include "snapshot/store/sign.h"
#include "snapshot/store/xml.h"
#include "tests/unit/io/scratch.h"

using namespace het;
using namespace het::testing;
using Catch::Contains;

namespace {

using Variables = std::map<std::string, std::string>;

EnvironmentLookup lookup(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// The signature of an example in AWS's documentation of Signature Version 4 for S3, of 24 May 2013.
std::string signature_of(UnsignedRequest request) {
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  if (request.content_sha256.empty())
    request.content_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
  const auto headers = sign(request, {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""},
                            "us-east-1", "20130524T000000Z");
  const std::string& text = headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

}  // namespace

TEST_CASE("requests get the signatures of AWS's documentation", "[store]") {
  CHECK(signature_of({"GET", "/test.txt", {}, {{"range", "bytes=0-9"}}}) ==
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(signature_of(
            {"PUT",
             "/" + percent_encode("test$file.text", true),
             {},
             {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
             "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"}) ==
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(signature_of({"GET", "/", {{"lifecycle", ""}}, {}}) ==
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(signature_of({"GET", "/", {{"max-keys", "2"}, {"prefix", "J"}}, {}}) ==
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("paths and queries are encoded as they are signed", "[store]") {
  CHECK(percent_encode("a b+c=d:e@f/g~h") == "a%20b%2Bc%3Dd%3Ae%40f%2Fg~h");
  CHECK(percent_encode("a b/c", true) == "a%20b/c");
  CHECK(percent_encode("\xc3\xa4") == "%C3%A4");
  CHECK(encode_query({{"uploads", ""}, {"prefix", "a/b"}, {"key-marker", "x=y"}}) ==
        "key-marker=x%3Dy&prefix=a%2Fb&uploads=");
}

TEST_CASE("credentials come from the environment, then from a profile", "[store]") {
  const Scratch scratch;
  scratch.put(
      ".aws/credentials",
      "# keys\n[default]\naws_access_key_id = one\naws_secret_access_key=two\r\n\n"
      "[ other ]\n aws_access_key_id=three\naws_secret_access_key = four=4\naws_session_token = five\n");
  Variables variables{{"HOME", scratch.folder()}};
  CHECK(find_credentials(lookup(variables)) == Credentials{"one", "two", ""});
  variables["AWS_PROFILE"] = "other";
  CHECK(find_credentials(lookup(variables)) == Credentials{"three", "four=4", "five"});
  variables["AWS_ACCESS_KEY_ID"] = "six";
  CHECK_THAT(error_of([&] { find_credentials(lookup(variables)); }),
             Contains("environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together; only "
                      "AWS_ACCESS_KEY_ID is set"));
  variables["AWS_SECRET_ACCESS_KEY"] = "seven";
  CHECK(find_credentials(lookup(variables)) == Credentials{"six", "seven", ""});
  variables["AWS_SECRET_ACCESS_KEY"] = "se\nven";
  CHECK(
      error_of([&] { find_credentials(lookup(variables)); }) ==
      "environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_SESSION_TOKEN has a character that is no "
      "part of one");
  CHECK_THAT(error_of([&] {
               find_credentials(lookup({{"HOME", scratch.folder()}, {"AWS_PROFILE", "none"}}));
             }),
             Contains("environment: an s3:// store needs credentials: set AWS_ACCESS_KEY_ID") &&
                 Contains("write the profile 'none' in " + scratch.folder()));
}

TEST_CASE("the site of a store is what AWS's variables say", "[store]") {
  const Scratch scratch;
  scratch.put(".aws/config", "[default]\nregion = eu-west-3\n[profile other]\nregion = eu-north-1\n");
  Variables variables{{"HOME", scratch.folder()}};
  CHECK(find_site(lookup({})).region == "us-east-1");
  CHECK(find_site(lookup(variables)).region == "eu-west-3");
  variables["AWS_PROFILE"] = "other";
  CHECK(find_site(lookup(variables)).region == "eu-north-1");
  variables["AWS_DEFAULT_REGION"] = "us-west-2";
  CHECK(find_site(lookup(variables)).region == "us-west-2");
  variables["AWS_REGION"] = "ap-south-1";
  CHECK(find_site(lookup(variables)).region == "ap-south-1");
  variables["AWS_ENDPOINT_URL"] = "http://10.0.0.7:9000/";
  CHECK(find_site(lookup(variables)).endpoint == "http://10.0.0.7:9000");
  variables["AWS_ENDPOINT_URL_S3"] = "https://store.example";
  CHECK(find_site(lookup(variables)).endpoint == "https://store.example");
  for (const char* wrong :
       {"10.0.0.7:9000", "ftp://host", "http://", "http://user:password@host", "http://host/path"}) {
    variables["AWS_ENDPOINT_URL_S3"] = wrong;
    const std::string said = error_of([&] { find_site(lookup(variables)); });
    CHECK_THAT(said, Contains("usage: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is no endpoint"));
    CHECK_THAT(said, !Contains("password"));
  }
  CHECK_THAT(error_of([] {
               find_site(lookup({{"AWS_REGION", "eu/west"}}));
             }),
             Contains("'eu/west' is no region"));
}

TEST_CASE("the XML of servers is read", "[store]") {
  const auto root = parse_xml(
      "  \n<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- a -- comment -->\n<s3:List "
      "xmlns:s3='http://x/'>\n"
      "  <Key>a&amp;b&lt;&#65;&#x20AC;</Key><Empty/><Empty a=\"1\" />\n <Owner><ID>x</ID></Owner>"
      "<Data><![CDATA[<raw>]]></Data></s3:List>\n");
  REQUIRE(root);
  CHECK(root->name == "List");
  CHECK(root->text.empty());
  CHECK(root->children.size() == 5);
  CHECK(root->text_of("Key") == "a&b<A\xe2\x82\xac");
  CHECK(root->text_of("Data") == "<raw>");
  CHECK(root->text_of("None").empty());
  REQUIRE(root->child("Owner") != nullptr);
  CHECK(root->child("Owner")->text_of("ID") == "x");
  CHECK(escape_xml("\"a\" & <b>") == "&quot;a&quot; &amp; &lt;b&gt;");
}

TEST_CASE("XML that is not well-formed, or wants more than a reply needs, is refused", "[store]") {
  for (const char* document : {"",
                               "text",
                               "<a>",
                               "<a></b>",
                               "<a></a><b/>",
                               "<a></a>x",
                               "<a b></a>",
                               "<a b=c></a>",
                               "<a b=\"<\"/>",
                               "<a",
                               "<a>&nbsp;</a>",
                               "<a>&#0;</a>",
                               "<a>&#xD800;</a>",
                               "<a>&#x110000;</a>",
                               "<a>&amp</a>",
                               "<a><!-- </a>",
                               "<a><![CDATA[</a>",
                               "<?xml version=\"1.0\"",
                               "<?xml version=\"1.0\" encoding=\"UTF-16\"?><a/>",
                               "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
                               "<a><?php ?></a>"}) {
    INFO(document);
    CHECK_FALSE(parse_xml(document));
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<a>";
  CHECK_FALSE(parse_xml(deep));
}

TEST_CASE("damaged XML is read or refused, and nothing else", "[store]") {
  const std::string document =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<List a=\"b\"><Key>a&amp;b&#65;</Key><!-- c --><E/>"
      "<D><![CDATA[x]]></D></List>";
  std::mt19937 random(3);
  int read = 0, refused = 0;
  for (int run = 0; run < 20'000; ++run) {
    std::string damaged = document;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      const size_t at = random() % damaged.size();
      if (random() % 3 == 0)
        damaged.resize(at + 1);
      else
        damaged[at] = "<>&;/='\"! x"[random() % 11];
    }
    parse_xml(damaged) ? ++read : ++refused;
  }
  CHECK(read > 100);
  CHECK(refused > 1000);
}

TEST_CASE("waits between tries grow, vary and stay within their limit", "[store]") {
  using std::chrono::milliseconds;
  Backoff waits(milliseconds(100), milliseconds(1000), 7);
  for (const int most : {100, 200, 400, 800, 1000, 1000, 1000}) {
    const milliseconds wait = waits.next();
    CHECK(wait >= milliseconds(most / 2));
    CHECK(wait <= milliseconds(most));
  }
  CHECK(waits.next(milliseconds(5000)) == milliseconds(1000));
  Backoff asked(milliseconds(10), milliseconds(1000), 7),
      other(milliseconds(1 << 20), milliseconds(1 << 20), 8),
      another(milliseconds(1 << 20), milliseconds(1 << 20), 9);
  CHECK(asked.next(milliseconds(700)) == milliseconds(700));
  CHECK(other.next() != another.next());
}
