use super::*;

object! {
    struct Pet<'a> {
        1 unless is_empty => name: Field<Text<'a>>,
        2 => legs: Field<i64>,
        3 => tame: Field<bool>,
        4 => friends: List<Pet<'a>>,
    }
}

fn pet(text: &str) -> Field<Pet<'static>> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn values_of_the_right_shape_are_read_without_a_problem() {
    let mut problems = Problems::default();
    let pet = pet(r#"{"name":"Rex","legs":4,"tame":true,"friends":[{"name":"Tom"}],"unknown":{"a":[1]}}"#)
        .read("pet", &mut problems)
        .unwrap();
    assert_eq!(pet.name.read("name", &mut problems).as_deref(), Some("Rex"));
    assert_eq!(pet.legs.read("legs", &mut problems), Some(4));
    assert_eq!(pet.tame.read("tame", &mut problems), Some(true));
    assert_eq!(pet.friends.read("friends", &mut problems).unwrap().len(), 1);
    assert_eq!(problems.into_vec(), Vec::<String>::new());
}

#[test]
fn every_kind_of_wrong_value_is_reported_with_its_path_and_never_fails() {
    for (wrong, words) in [
        ("{}", "legs: {} is not an integer"),
        ("[1,{\"a\":2}]", "legs: [1,{\"a\":2}] is not an integer"),
        ("\"4\"", "legs: \"4\" is not an integer"),
        ("4.5", "legs: 4.5 is not an integer"),
        ("true", "legs: true is not an integer"),
        ("18446744073709551615", "legs: 18446744073709551615 is not an integer"),
    ] {
        let mut problems = Problems::default();
        let pet = pet(&format!(r#"{{"legs":{wrong},"name":"Rex"}}"#)).read("pet", &mut problems).unwrap();
        assert_eq!(pet.legs.read("legs", &mut problems), None);
        assert_eq!(pet.name.read("name", &mut problems).as_deref(), Some("Rex"));
        assert_eq!(problems.into_vec(), [words]);
    }
}

#[test]
fn null_counts_as_absent() {
    let Field::Is(pet) = pet(r#"{"name":null,"friends":null}"#) else { panic!("not an object") };
    assert!(!pet.name.is_present());
    assert!(!pet.friends.is_present());
}

#[test]
fn a_wrong_element_leaves_its_neighbours_alone() {
    let mut problems = Problems::default();
    let Field::Is(pet) = pet(r#"{"friends":[{"name":"Tom"},7,{"name":[]},null,{"name":"Kim"}]}"#) else {
        panic!("not an object")
    };
    let names = pet.friends.read_each("friends", &mut problems, |friend, at, problems| {
        friend.name.read(format_args!("{at}.name"), problems)
    });
    assert_eq!(names, ["Tom", "Kim"]);
    assert_eq!(
        problems.into_vec(),
        ["friends[1]: 7 is not an object", "friends[2].name: [] is not a string"]
    );
}

#[test]
fn a_long_wrong_value_is_shortened() {
    let mut problems = Problems::default();
    Field::<i64>::wrong("é".repeat(5000)).read("legs", &mut problems);
    assert!(problems.into_vec()[0].len() < 250);
}

#[test]
fn text_of_users_forges_no_line_and_moves_no_cursor() {
    let text = "a\nb\u{1b}[2J\u{9b}2J\u{202e}\"";
    assert_eq!(Quoted(text).to_string(), r#""a\nb\u{1b}[2J\u{9b}2J\u{202e}\"""#);
    assert_eq!(brief(&text.into()), r#""a\nb\u001b[2J\u{9b}2J\u{202e}\"""#);
    assert_eq!(Quoted(&"é".repeat(5000)).to_string(), format!("\"{}\"...", "é".repeat(80)));
}

#[test]
fn the_first_of_many_problems_are_listed_and_the_others_counted() {
    let mut problems = Problems::default();
    (0..100_000).for_each(|number| problems.add(number, "wrong"));
    let problems = problems.into_vec();
    assert_eq!(problems.len(), 17);
    assert_eq!(problems.last().unwrap(), "and 99984 more problems");
}
