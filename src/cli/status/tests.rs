pub(in crate::cli) mod sample;

use super::super::documented_tests::assert_documented;

#[test]
fn its_json_is_documented() {
    assert_documented("status", &sample::status());
}
