//! Parsing of a request: the command and its arguments.

use serde_json::Value;

/// A request whose command is not yet known to exist.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The id that the reply must repeat.
    pub id: Value,
    /// The command's name.
    pub method: String,
    /// Its arguments; none if one of them is not a string.
    pub arguments: Option<Vec<String>>,
}

/// Parses a request. Anything else is an error, which ends the connection, as in Open vSwitch.
pub fn parse_request(message: &[u8]) -> Result<Request, String> {
    let bad = |what: &str| format!("received bad JSON-RPC message: {what}");
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(message) else {
        return Err(bad("message is not valid JSON"));
    };
    if let Some(unknown) = fields
        .keys()
        .find(|key| !["id", "method", "params", "result", "error"].contains(&key.as_str()))
    {
        return Err(bad(&format!(
            "message has unexpected member \"{}\"",
            unknown.escape_default()
        )));
    }
    let mut take = |name: &str| fields.remove(name).filter(|value| !value.is_null());
    let (id, method, params) = (take("id"), take("method"), take("params"));
    let answers = take("result").is_some() || take("error").is_some();
    let method = match method {
        Some(Value::String(method)) => method,
        Some(_) => return Err(bad("method is not a JSON string")),
        None if answers => return Err("received unexpected reply message".into()),
        None => return Err(bad("message has no \"method\"")),
    };
    let Some(Value::Array(params)) = params else {
        return Err(bad("request must have \"params\""));
    };
    if answers {
        return Err(bad("request must not have \"result\" or \"error\""));
    }
    let id = id.ok_or("received unexpected notification message")?;
    let text = |value| {
        if let Value::String(text) = value {
            Some(text)
        } else {
            None
        }
    };
    Ok(Request {
        id,
        method,
        arguments: params.into_iter().map(text).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn requests_and_what_is_none() {
        let request = parse_request(br#"{"id":{"a":1},"method":"m","params":["x"]}"#).unwrap();
        assert_eq!(
            request,
            Request {
                id: json!({"a": 1}),
                method: "m".into(),
                arguments: Some(vec!["x".into()])
            }
        );
        assert_eq!(
            parse_request(br#"{"id":0,"method":"m","params":[1]}"#)
                .unwrap()
                .arguments,
            None
        );
        let error = |text: &str| parse_request(text.as_bytes()).unwrap_err();
        assert_eq!(
            error(r#"{"id":null,"method":"m","params":[]}"#),
            "received unexpected notification message"
        );
        assert_eq!(
            error(r#"{"id":0,"result":"x","error":null}"#),
            "received unexpected reply message"
        );
        assert!(error(r#"{"id":0,"method":"m"}"#).ends_with("request must have \"params\""));
        assert!(
            error(r#"{"id":0,"method":5,"params":[]}"#).ends_with("method is not a JSON string")
        );
        assert!(
            error(r#"{"id":0,"method":"m","params":[],"more":1}"#).contains("unexpected member")
        );
        assert!(error("{nonsense}").ends_with("not valid JSON"));
        let deep = format!("{{\"id\":{}", "[".repeat(100_000));
        assert!(error(&deep).ends_with("not valid JSON"));
    }

    proptest! {
        #[test]
        fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_request(&bytes);
        }
    }
}
