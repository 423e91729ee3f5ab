import json

from tokflow.views.viewer_content import as_json


def test_json_in_a_page_keeps_its_value_and_ends_no_element():
    value = {"a": "</script> <!-- & \u2028\u2029 é \udcff", "b": [1, None]}

    written = as_json(value)

    assert json.loads(written) == value
    assert not {*b"<>&"} & {*written}
    assert "é".encode() in written
